import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apps.base_models import install_base_models
from apps.bundled import find_bundled, read_demonstration_settings
from apps.cli import preflight
from apps.cli.main import cli
from serving.store.import_process import check_import
from serving.store.model_store import ModelStore
from storage.layout import open_storage
from training.spec import TrainingSpec

ROOT = Path(__file__).parents[3]


def test_preflight_of_complete_machine_has_no_faults(tmp_path: Path) -> None:
    assert list(preflight.find_faults(tmp_path / ".venv", None)) == []


def test_busy_port_is_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        deploy = tmp_path / "deploy.yaml"
        deploy.write_text(f"http_options:\n  host: 127.0.0.1\n  port: {port}\n")
        (fault,) = preflight.find_faults(None, deploy)
    assert f"port {port} is in use" in fault


def test_dead_ray_cluster_is_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert list(preflight.check_cluster()) == []
    record = tmp_path / "ray" / "ray_current_cluster"
    record.parent.mkdir()
    with socket.socket() as cluster:
        cluster.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        record.write_text(address)
        cluster.listen()
        assert list(preflight.check_cluster()) == []
    (fault,) = preflight.check_cluster()
    assert f"the cluster at {address}, which does not answer" in fault
    assert str(record) in fault
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert list(preflight.check_cluster()) == [], "the file was read although RAY_ADDRESS is set"


def test_missing_compiler_is_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (fault,) = preflight.check_compiler()
    assert "no C++ compiler 'no-such-compiler' was found" in fault
    assert "apt-get install g++" in fault


def test_insufficient_disk_space_is_fault(tmp_path: Path) -> None:
    (fault,) = preflight.check_disk(tmp_path, 10**18)
    assert "GB are free in" in fault
    assert "1000000000 GB are needed" in fault


def test_preflight_runs_with_standard_library_only() -> None:
    command = [
        sys.executable,
        "-S",
        str(ROOT / "apps" / "cli" / "preflight.py"),
    ]  # the Makefile's command
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_port_of_shipped_deploy_file_is_8000() -> None:
    assert preflight.read_port(ROOT / "deploy.yaml") == 8000


def test_init_does_not_overwrite_deploy_file(tmp_path: Path) -> None:
    first = CliRunner().invoke(cli, ["init", str(tmp_path)])
    assert first.exit_code == 0
    assert (tmp_path / "deploy.yaml").read_text() == (ROOT / "deploy.yaml").read_text()
    second = CliRunner().invoke(cli, ["init", str(tmp_path)])
    assert second.exit_code == 1


def test_bundled_settings_are_valid_training_spec() -> None:
    settings = read_demonstration_settings("causal_lm")
    TrainingSpec.model_validate({**settings, "base_model": "m", "train_file": "f"})


@pytest.mark.usefixtures("preloaded_check")
def test_bundled_model_is_small_and_becomes_latest(tmp_path: Path) -> None:
    folder = find_bundled("tuneserve-demo")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 15_000_000
    store = ModelStore(open_storage(tmp_path))
    install_base_models(store, {"tuneserve-demo": "bundled"})
    install_base_models(store, {"tuneserve-demo": "bundled"})
    assert [model.id for model in store.list_models()] == ["tuneserve-demo"]
    assert store.resolve("latest").id == "tuneserve-demo"


def test_unavailable_base_model_raises(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^base_models: 'mine' cannot be had from 'no/such-model'"
    ):
        install_base_models(ModelStore(open_storage(tmp_path)), {"mine": "no/such-model"})


@pytest.mark.usefixtures("preloaded_check")
def test_invalid_base_model_entry_is_skipped_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layout = open_storage(tmp_path)
    store = ModelStore(layout)
    (layout.models / "broken").mkdir()
    layout.store.aliases.write_text("{")
    install_base_models(store, {"broken": "bundled", "tuneserve-demo": "bundled"})
    assert "'broken' is not installed" in caplog.text
    layout.store.aliases.unlink()
    install_base_models(store, {"broken": "bundled", "tuneserve-demo": "bundled"})
    assert store.resolve("latest").id == "tuneserve-demo"


@pytest.mark.usefixtures("preloaded_check")
def test_base_model_with_excessive_hidden_size_is_refused(tmp_path: Path) -> None:
    source = Path(shutil.copytree(find_bundled("tuneserve-demo"), tmp_path / "source"))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "hidden_size": 2**40}))
    store = ModelStore(open_storage(tmp_path / "storage"))
    with pytest.raises(ValueError, match=r"^base_models: 'big' .* hidden_size is 1099511627776"):
        install_base_models(store, {"big": str(source)})
    assert store.list_models() == []


def test_bundled_model_passes_import_check() -> None:
    assert check_import(find_bundled("tuneserve-demo")).weight_bytes > 1_000_000
