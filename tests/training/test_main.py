import json
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from system.process_ends import wait_for_ends
from tests.tiny_model import build_tiny_model
from training.__main__ import PAUSED_STATUS, kill_leftover_processes, main
from training.run.folder import RunFolder


def test_remaining_processes_of_cluster_are_killed() -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as hanging:
        assert hanging.stdout is not None
        hanging.stdout.readline()
        process = psutil.Process(hanging.pid)
        kill_leftover_processes([process], timeout_s=0.1)
        assert not wait_for_ends([process], 5)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    found = psutil.Process(gone.pid)
    gone.wait()
    kill_leftover_processes([found])


def test_url_as_output_is_rejected_without_creating_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Previously, the run was written to a local folder 's3:'."""
    monkeypatch.chdir(tmp_path)
    assert main(["spec.yaml", "--output", "s3://bucket/run"]) == 2
    assert "--output is 's3://bucket/run', expected a path" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def run_without_a_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> int:
    """Run the command with a fake cluster of 2 CPUs and a `train` that starts no workers."""
    monkeypatch.setattr("training.__main__._connect_to_ray", nullcontext)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    monkeypatch.setattr("training.launch.ensure_cpu_op", lambda: False)
    monkeypatch.setattr("training.launch.train", lambda *_, **__: "paused")
    build_tiny_model(folder / "tiny")
    (folder / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    values = {"base_model": "tiny", "train_file": "rows.jsonl", **changes}
    (folder / "spec.json").write_text(json.dumps(values))
    arguments = [str(folder / "spec.json"), "--output", str(folder / "run")]
    return main([*arguments, "--cache", str(folder / "cache")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0}, "learning_rate is 0: it should be greater than 0"),
        ({"train_file": "gone.jsonl"}, "no file at"),
        ({"base_model": "no/such-model"}, "base_model 'no/such-model' is neither"),
        ({"max_length": 4096, "micro_batch_tokens": 4096}, "a context of 128 tokens"),
    ],
)
def test_invalid_input_prints_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_without_a_cluster(tmp_path, monkeypatch, **change) == 2
    error_output = " ".join(capsys.readouterr().err.split())
    assert message in error_output
    assert "Traceback" not in error_output


def test_folder_with_other_content_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letters.txt").write_text("mine")
    assert run_without_a_cluster(tmp_path, monkeypatch) == 2
    assert "is not empty and contains no run" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "run" / "letters.txt").read_text() == "mine"


def test_folder_of_rejected_first_start_can_be_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Previously, a corrected spec was rejected because the run had other settings."""
    start = partial(run_without_a_cluster, tmp_path, monkeypatch)
    assert start(precision="fp16") == 2
    assert RunFolder(tmp_path / "run").read_record().status == "failed"
    assert start(precision="fp32", learning_rate=0.5) == PAUSED_STATUS
    run = RunFolder(tmp_path / "run")
    assert run.read_spec().learning_rate == 0.5
    assert run.read_record().error is None


def test_trained_run_keeps_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = partial(run_without_a_cluster, tmp_path, monkeypatch)
    assert start(precision="fp16") == 2
    run = RunFolder(tmp_path / "run")
    (run.checkpoints / "checkpoint_0000000004").mkdir(parents=True)
    assert start(precision="fp32") == 2
    assert "was started with other settings" in capsys.readouterr().err.replace("\n", " ")
    (run.checkpoints / "checkpoint_0000000004").rmdir()
    run.metrics.add({"step": 1, "loss": 1.0})
    assert start(precision="fp32") == 2


@pytest.mark.parametrize("name", ["run.json", "spec.json"])
@pytest.mark.parametrize("content", ["", '{"id": "run", "sta', "[]"])
def test_truncated_file_of_run_is_named(
    name: str,
    content: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start = partial(run_without_a_cluster, tmp_path, monkeypatch)
    assert start(precision="fp32") == PAUSED_STATUS
    (tmp_path / "run" / name).write_text(content)
    assert start(precision="fp32") == 1
    message = "".join(capsys.readouterr().err.split())
    assert f"run/{name}'isdamaged" in message
    assert "restoreitfromabackup" in message
