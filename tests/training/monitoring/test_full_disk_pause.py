"""A run pauses on a full disk; `tests/faults/test_full_disk.py` tests it with a real full disk."""

import errno
from pathlib import Path

import pytest

from system.free_resources import has_free_space
from training.cluster.ray_train import TrainingFailedError
from training.launch import execute_run
from training.monitoring.full_disk_pause import record_full_disk_pause
from training.preflight.disk_and_memory import check_disk_and_memory
from training.preflight.requirements import ModelSize
from training.run.folder import RunFolder
from training.run.run_record import RunRecord
from training.spec import TrainingSpec

FULL = OSError(errno.ENOSPC, "No space left on device")
SPEC = TrainingSpec(base_model="gone", train_file="rows.jsonl")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.create(SPEC, RunRecord(id="run", created_at=1, writer="job", status="running"))
    return run


def test_full_disk_pauses_run(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously, the run failed and had to be restarted manually."""

    def fail(*_: object) -> None:
        raise TrainingFailedError("worker 0 failed: OSError: [Errno 28] No space left on device")

    monkeypatch.setattr("training.launch._compute", fail)
    assert execute_run(run, SPEC) is None
    record = run.read_record()
    assert record.status == "paused"
    assert record.error is None
    assert record.waiting_for is not None
    assert "room on the disk" in record.waiting_for
    (event,) = run.events.read()
    assert (event["level"], event["code"]) == ("warn", "disk_full")
    assert "No space left on device" in event["message"]
    assert event["data"]["needed_bytes"] == record.needed_bytes


def test_paused_run_waits_for_disk_space(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    record_full_disk_pause(run, SPEC, FULL)
    needed_bytes = run.read_record().needed_bytes
    assert needed_bytes is not None
    free = needed_bytes - 1
    monkeypatch.setattr("system.free_resources.measure_free_disk", lambda _: free)
    assert not has_free_space(run.path, needed_bytes)
    free = needed_bytes
    assert has_free_space(run.path, needed_bytes)
    free = 0
    assert has_free_space(run.path, None), "a run that does not wait for room"
    assert not run.is_pause_requested


def test_resumed_run_passes_disk_space_check(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.preflight.preflight.count_parameters", lambda _: 10_000_000)
    record_full_disk_pause(run, SPEC, FULL)
    free = run.read_record().needed_bytes
    monkeypatch.setattr("training.preflight.disk_and_memory.measure_free_disk", lambda _: free)
    spec = SPEC.model_copy(update={"precision": "fp32"})
    size = ModelSize(10_000_000, 10_000_000)
    check_disk_and_memory(run, spec, size, [{"CPU": 2.0}], on_gpu=False)


def test_run_without_progress_waits_for_user(run: RunFolder) -> None:
    """Otherwise the run would be restarted repeatedly if a different disk is full."""
    run.metrics.add({"step": 5, "loss": 1.0})
    record_full_disk_pause(run, SPEC, FULL)
    assert not run.is_pause_requested
    run.metrics.add({"step": 6, "loss": 1.0})
    record_full_disk_pause(run, SPEC, FULL)
    assert not run.is_pause_requested
    record_full_disk_pause(run, SPEC, FULL)
    assert run.requested_pause_reason == "user"
    assert "when it is resumed" in run.events.read()[-1]["message"]


def test_unrecorded_pause_leaves_record_unchanged(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise FULL

    monkeypatch.setattr("training.run.folder.durable.append_json_line", fail)
    monkeypatch.setattr("training.run.folder.versioned_json.write_object", fail)
    record_full_disk_pause(run, SPEC, FULL)
    assert run.read_record().status == "running", "the queue resumes a run with this status"


def test_ended_run_is_not_paused(run: RunFolder) -> None:
    run.update_record(status="cancelled")
    record_full_disk_pause(run, SPEC, FULL)
    assert run.read_record().status == "cancelled"
    assert run.events.read() == []
