from pathlib import Path
from typing import Any

import pytest

from system.free_resources import Memory, measure_gpu_memory, measure_host_memory
from training.preflight.disk_and_memory import check_disk_and_memory
from training.preflight.requirements import ModelSize
from training.preflight.resources import ResourceError
from training.run.folder import RunFolder
from training.spec import TrainingSpec

NODES = [{"CPU": 2.0}]
PLENTY = 1 << 40
NUM = 1_000_000
SIZE = ModelSize(NUM, NUM)

MODULE = "training.preflight.disk_and_memory"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    return run


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The simulated resources of this machine in bytes; tests lower some of them."""
    limits: dict[str, Any] = {
        "disk": PLENTY,
        "memory": Memory(PLENTY, PLENTY),
        "gpus": [Memory(PLENTY, PLENTY)],
        "one disk": True,
    }
    monkeypatch.setattr(f"{MODULE}.measure_free_disk", lambda _: limits["disk"])
    monkeypatch.setattr(f"{MODULE}.measure_host_memory", lambda: limits["memory"])
    monkeypatch.setattr(f"{MODULE}.measure_gpu_memory", lambda: limits["gpus"])
    monkeypatch.setattr(f"{MODULE}.are_on_one_disk", lambda *_: limits["one disk"])
    return limits


def make_spec(**changes: Any) -> TrainingSpec:
    values = {"base_model": "m", "train_file": "r", "precision": "fp32", "epochs": 1}
    return TrainingSpec.model_validate({**values, **changes})


def test_run_with_enough_space_emits_no_event(run: RunFolder, limits: dict[str, Any]) -> None:
    check_disk_and_memory(run, make_spec(), SIZE, NODES, on_gpu=False)
    check_disk_and_memory(run, make_spec(), SIZE, NODES, on_gpu=True)
    assert run.events.read() == []


def test_too_small_disk_rejects_run(run: RunFolder, limits: dict[str, Any]) -> None:
    # A checkpoint and the model, 16 bytes per parameter, and the shards during upload, 12.
    limits["disk"] = 28 * NUM - 1
    with pytest.raises(
        ResourceError, match=r"^the disk of 'run'.*0.03 GB are needed for 1,000,000"
    ):
        check_disk_and_memory(run, make_spec(), SIZE, NODES, on_gpu=False)
    limits["disk"] = 28 * NUM
    check_disk_and_memory(run, make_spec(), SIZE, NODES, on_gpu=False)
    (event,) = run.events.read()
    assert (event["level"], event["code"]) == ("warn", "resources_close")
    assert event["data"]["free_bytes"] == 28 * NUM < event["data"]["needed_bytes"]
    assert "may not be enough" in event["message"]


def test_temporary_folder_is_checked_separately(run: RunFolder, limits: dict[str, Any]) -> None:
    """Previously, only the first checkpoint detected that it was full, five times."""
    limits |= {"one disk": False, "disk": 12 * NUM - 1}
    with pytest.raises(ResourceError):
        check_disk_and_memory(run, make_spec(), SIZE, NODES, on_gpu=False)
    limits["disk"] = 16 * NUM
    check_disk_and_memory(run, make_spec(), SIZE, NODES, on_gpu=False)


def test_too_little_memory_rejects_run(run: RunFolder, limits: dict[str, Any]) -> None:
    limits["memory"] = Memory(24 * NUM - 1, 0)
    with pytest.raises(ResourceError, match="^the memory of this machine.*or zero_stage 3"):
        check_disk_and_memory(run, make_spec(zero_stage=0), SIZE, NODES, on_gpu=False)
    check_disk_and_memory(run, make_spec(zero_stage=3), SIZE, NODES, on_gpu=False)
    (event,) = run.events.read()
    assert "the memory of this machine may not be enough" in event["message"]


def test_memory_of_several_nodes_emits_only_warning(run: RunFolder, limits: dict[str, Any]) -> None:
    limits["memory"] = Memory(0, 0)
    nodes = [{"CPU": 2.0, "memory": float(NUM)}] * 2
    check_disk_and_memory(run, make_spec(), SIZE, nodes, on_gpu=False)
    assert [event["code"] for event in run.events.read()] == ["resources_close"]


def test_too_small_gpu_rejects_run(run: RunFolder, limits: dict[str, Any]) -> None:
    limits["gpus"] = [Memory(1, 1), Memory(6 * NUM - 1, 6 * NUM - 1)]
    spec = make_spec(num_workers=2)
    with pytest.raises(ResourceError, match="^the memory of a GPU.*offload_optimizer"):
        check_disk_and_memory(run, spec, SIZE, NODES, on_gpu=True)
    check_disk_and_memory(
        run, spec.model_copy(update={"offload_optimizer": True}), SIZE, NODES, on_gpu=True
    )
    limits["gpus"] = []  # without an answer from the driver, no run is rejected
    check_disk_and_memory(run, spec, SIZE, NODES, on_gpu=True)


def test_host_memory_is_measured() -> None:
    memory = measure_host_memory()
    assert 0 < memory.free <= memory.total


def test_gpu_memory_is_read_from_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for script, expected in (
        (
            "echo '81559, 80000'; echo '40960, 1'",
            [(81559 << 20, 80000 << 20), (40960 << 20, 1 << 20)],
        ),
        ("echo 'No devices were found'", []),
        ("exit 9", []),
    ):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        assert measure_gpu_memory() == expected
