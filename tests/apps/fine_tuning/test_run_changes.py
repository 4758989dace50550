"""Pausing, resuming and deleting runs."""

import errno
import shutil
from typing import Any

import pytest

from apps.errors import ApiError
from apps.fine_tuning.job_responses import describe_job
from apps.fine_tuning.queue import RunQueue
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs, create_run
from tests.apps.fine_tuning.conftest import FIGURES
from training.monitoring.full_disk_pause import record_full_disk_pause
from training.run.run_events import MAX_EVENTS_BYTES
from training.run.run_record import RunError, RunStatus

pytestmark = pytest.mark.anyio


async def test_queued_run_is_paused_and_resumes_at_its_position(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    first, second = await create_run(queue, file_id), await create_run(queue, file_id)
    assert (await queue.pause(first.path.name))["status"] == "paused"
    assert (await queue.pause(first.path.name))["status"] == "paused"
    await queue.pause(second.path.name)
    await queue.reconcile()
    assert jobs.started == []
    await queue.resume(second.path.name)
    assert (await queue.resume(first.path.name))["status"] == "queued"
    await queue.reconcile()
    assert jobs.started == [first.path.name]


async def test_repeated_pauses_add_bounded_number_of_events(queue: RunQueue, file_id: str) -> None:
    run = await create_run(queue, file_id)
    await queue.pause(run.path.name)
    events = run.events.read()
    for _ in range(3):
        await queue.pause(run.path.name)
    assert run.events.read() == events, "a repeated pause added an event"
    while run.events.path.stat().st_size < MAX_EVENTS_BYTES:
        run.events.add("x" * 200_000)
    events = run.events.read()
    assert (events[-1]["level"], events[-1]["data"]) == ("warn", {"max_bytes": MAX_EVENTS_BYTES})
    for _ in range(3):
        assert (await queue.resume(run.path.name))["status"] == "queued"
        assert (await queue.pause(run.path.name))["status"] == "paused"
    assert run.events.read() == events


async def test_active_run_pauses_and_resumes_in_new_job(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    assert (await queue.pause(run.path.name))["status"] == "running"
    assert run.is_pause_requested
    run.update_record(status="paused")  # as the run's process does
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "paused"
    assert (await queue.resume(run.path.name))["status"] == "queued"
    assert not run.is_pause_requested
    await queue.reconcile()
    assert list(jobs.commands) == [f"{run.path.name}-1", f"{run.path.name}-2"]
    with pytest.raises(ApiError, match=f"^job '{run.path.name}' is queued, not paused$") as caught:
        await queue.resume(run.path.name)
    assert caught.value.status == 409


async def test_pause_request_can_be_withdrawn(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.pause(run.path.name)
    assert (await queue.resume(run.path.name))["status"] == "running"
    assert not run.is_pause_requested


async def test_run_that_pauses_after_withdrawn_request_resumes(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.pause(run.path.name)
    await queue.resume(run.path.name)  # the run's process has already read the pause request
    run.update_record(status="paused")
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    await queue.reconcile()
    assert jobs.started == [run.path.name] * 2


async def test_run_paused_on_full_disk_can_be_resumed(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("system.free_resources.measure_free_disk", lambda _: 1)
    run = await create_run(queue, file_id)
    await queue.reconcile()
    jobs.states[f"{run.path.name}-1"] = "ended"
    run.update_record(status="running")
    record_full_disk_pause(run, run.read_spec(), OSError(errno.ENOSPC, "No space left on device"))
    await queue.reconcile()
    assert run.read_record().status == "paused"
    await queue.resume(run.path.name)
    await queue.reconcile()
    assert jobs.started == [run.path.name, run.path.name]


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_failed_or_cancelled_run_can_be_resumed(
    queue: RunQueue, jobs: NotedJobs, file_id: str, status: RunStatus
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    error = RunError(code="OSError", message="no space left") if status == "failed" else None
    run.update_record(status=status, error=error, finished_at=5, num_lost=3)
    run.request_cancel()
    run.request_pause()
    jobs.states[f"{run.path.name}-1"] = "ended"
    resumed = await queue.resume(run.path.name)
    assert (resumed["status"], resumed["error"], resumed["finished_at"]) == ("queued", None, None)
    assert run.read_record().num_lost == 0
    await queue.reconcile()
    assert list(jobs.commands) == [f"{run.path.name}-1", f"{run.path.name}-2"]
    assert not run.is_cancel_requested
    assert not run.is_pause_requested


async def test_succeeded_run_or_run_without_rows_cannot_be_resumed(
    queue: RunQueue, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    run.update_record(status="succeeded")
    with pytest.raises(ApiError, match=f"^job '{run.path.name}' has succeeded already$"):
        await queue.resume(run.path.name)
    run.update_record(status="failed")
    assert describe_job(run)["resumable"]
    shutil.rmtree(run.data)
    assert not describe_job(run)["resumable"]
    with pytest.raises(
        ApiError, match=f"^job '{run.path.name}' has failed before its rows were read, and cannot "
    ) as caught:
        await queue.resume(run.path.name)
    assert (caught.value.status, caught.value.code) == (409, "job_ended")


async def test_resumed_run_has_no_result_file_of_earlier_end(queue: RunQueue, file_id: str) -> None:
    run = await create_run(queue, file_id)
    run.metrics.add(FIGURES)
    assert (await queue.cancel(run.path.name))["result_files"]
    assert (await queue.resume(run.path.name))["result_files"] == []


async def test_run_deleted_during_change_is_reported_as_not_found(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    run.update_record(status="failed")

    def delete_run(*_: Any) -> bool:
        shutil.rmtree(run.path)
        return True

    monkeypatch.setattr("apps.fine_tuning.run_changes.is_resumable", delete_run)
    with pytest.raises(ApiError) as caught:
        await queue.resume(run.path.name)
    assert caught.value.status == 404


async def test_only_ended_run_is_deleted(
    queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    with pytest.raises(ApiError, match=f"^job '{run.path.name}' is queued; cancel it first$"):
        await queue.delete(run.path.name)
    await queue.cancel(run.path.name)
    await queue.delete(run.path.name)
    assert not run.path.exists()
    with pytest.raises(ApiError, match="^there is no job"):
        await queue.delete(run.path.name)
