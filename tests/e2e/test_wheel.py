"""The built wheel works when installed in a clean environment outside the checkout."""

import json
import re
import runpy
import subprocess
import sys
import zipfile
from contextlib import suppress
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

from benchmarks.application import find_free_port, write_deploy_file
from tests.e2e.conftest import ROOT, start_application

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def call(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_wheel_has_product_without_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "apps",
        "serving",
        "storage",
        "system",
        "model_files",
        "templating",
        "training",
    }
    for needed in (
        "deploy.yaml",
        "deploy.vllm.yaml",
        "adapter.yaml",
        "handbook.yaml",
        "preference.yaml",
        "tuneserve-demo/model.safetensors",
    ):
        assert f"apps/embedded/{needed}" in names


def build_clean_environment(folder: Path, wheel: Path) -> Path:
    """Build an environment with a wheel and links to its runtime dependencies alone.

    They are those that `make setup` has installed by `constraints.txt`; to install them again takes
    more than a minute. Returns the environment's Python.
    """
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in runpy.run_path(str(ROOT / ".ci" / "sbom.py"))["find_runtime_dependencies"]():
        for file in distribution(name).files or ():
            if ".." not in file.parts:  # the commands of other packages are not needed
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):  # two of them have `opencensus/__init__.py`
                    target.symlink_to(file.locate())
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    call(*install, wheel, cwd=folder.parent)
    return python


@pytest.mark.long
def test_wheel_serves_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    python = build_clean_environment(tmp_path / "environment", wheel)
    folder = tmp_path / "somewhere"
    folder.mkdir()
    call(python.parent / "tuneserve", "init", cwd=folder)
    port = find_free_port()
    deploy = write_deploy_file(folder / "deploy.yaml", folder, port)
    application = start_application(deploy, folder, port, python)
    try:
        from tests.e2e.test_application import complete_chat

        assert complete_chat(application.client, "latest", "Hello!")
        assert application.client.files.retrieve("file-handbook").filename == "handbook.jsonl"
    finally:
        application.stop()


def find_cyclonedx(folder: Path) -> Path:
    """Return the tool that `make audit` and `make wheel` install, or install it into a folder."""
    installed = Path(sys.prefix) / "tools" / "bin" / "cyclonedx-py"
    if installed.is_file():
        return installed
    pin = re.search(r"^CYCLONEDX := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pin
    call(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    call(folder / "bin/python", "-m", "pip", "install", "--quiet", pin[1], cwd=folder.parent)
    return folder / "bin" / "cyclonedx-py"


def test_bill_of_materials_has_only_runtime_dependencies(tmp_path: Path) -> None:
    command = (sys.executable, ROOT / ".ci" / "sbom.py", "--output", tmp_path / "dist")
    output = call(*command, "--cyclonedx", find_cyclonedx(tmp_path / "sbom"), cwd=tmp_path)
    written = Path(output.strip())
    assert re.fullmatch(r"tuneserve-[\d.]+\.cdx\.json", written.name)
    bom = json.loads(written.read_text())
    assert bom["bomFormat"] == "CycloneDX"
    assert bom["metadata"]["component"]["name"] == "tuneserve"
    found = {component["name"].lower(): component["version"] for component in bom["components"]}
    for name in ("ray", "torch", "uvicorn", "grpcio", "opencensus"):  # including ray's extras
        assert found[name] == version(name)
    assert not {"pytest", "mypy", "ruff", "openai", "playwright", "schemathesis"} & set(found)
    refs = {component["bom-ref"] for component in bom["components"]}
    linked = {ref for one in bom["dependencies"] for ref in one.get("dependsOn", ())}
    assert linked <= refs
