"""Cancelling runs, also if the cancellation is interrupted."""

import asyncio

import anyio
import pytest

from apps.errors import ApiError
from apps.fine_tuning.queue import RunQueue
from tests.apps.conftest import NotedJobs, create_run
from tests.apps.fine_tuning.conftest import list_messages
from training.run.lease import acquire_lease

pytestmark = pytest.mark.anyio


async def test_queued_run_is_cancelled_without_starting(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    job = await queue.cancel(run.path.name)
    await queue.reconcile()
    assert job["status"] == "cancelled"
    assert jobs.commands == {}


async def test_active_run_is_stopped_and_cancelled(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    job = await queue.cancel(run.path.name)
    assert job["status"] == "cancelled"
    assert jobs.states[f"{run.path.name}-1"] == "ended"
    with pytest.raises(ApiError, match=f"^job '{run.path.name}' has cancelled already$") as caught:
        await queue.cancel(run.path.name)
    assert caught.value.status == 409


async def test_paused_run_can_be_cancelled(queue: RunQueue, jobs: NotedJobs, file_id: str) -> None:
    run = await create_run(queue, file_id)
    await queue.pause(run.path.name)
    assert (await queue.cancel(run.path.name))["status"] == "cancelled"
    with pytest.raises(ApiError, match=f"^job '{run.path.name}' has cancelled already$"):
        await queue.pause(run.path.name)


async def test_cancellation_and_reconcile_passes_may_run_concurrently(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    async with anyio.create_task_group() as group:
        group.start_soon(queue.cancel, run.path.name)
        for _ in range(5):
            group.start_soon(queue.reconcile)
    assert run.read_record().status == "cancelled"


async def test_cancelled_run_ends_only_after_its_process(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.fine_tuning.run_changes.STOP_TIMEOUT_S", 0.2)
    run, other = await create_run(queue, file_id), await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    with acquire_lease(run):  # a process that has outlived its job holds the lease
        with pytest.raises(
            ApiError, match=f"^job '{run.path.name}' did not stop in 0.2 s; "
        ) as caught:
            await queue.cancel(run.path.name)
        await queue.reconcile()
        assert run.read_record().status == "running"
    assert caught.value.status == 504
    await queue.reconcile()
    assert run.read_record().status == "cancelled"
    await queue.reconcile()
    assert jobs.started == [run.path.name, other.path.name]


async def test_cancellation_does_not_end_run_resumed_meanwhile(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")

    def stop(job_id: str, timeout_s: float) -> bool:
        jobs.states[job_id] = "ended"
        asyncio.run(queue.reconcile())  # detects the end first
        asyncio.run(queue.resume(run.path.name))
        asyncio.run(queue.reconcile())
        return True

    monkeypatch.setattr(jobs, "stop", stop)
    await queue.cancel(run.path.name)
    record = run.read_record()
    assert (record.status, record.writer, record.num_starts) == ("queued", "job", 2)
    assert not any(message.startswith("Interrupted") for message in list_messages(run))


async def test_interrupted_cancellation_is_completed_after_job_ended(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    run.request_cancel()
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "cancelled"


@pytest.mark.parametrize("was_paused", [False, True])
async def test_interrupted_cancellation_is_completed_and_blocks_no_other_run(
    queue: RunQueue, jobs: NotedJobs, file_id: str, was_paused: bool
) -> None:
    run, other = await create_run(queue, file_id), await create_run(queue, file_id)
    if was_paused:
        await queue.pause(run.path.name)
    run.request_cancel()
    with pytest.raises(ApiError, match=f"^job '{run.path.name}' is being cancelled$"):
        await queue.resume(run.path.name)
    await queue.reconcile()
    assert run.read_record().status == "cancelled"
    assert jobs.started == [other.path.name]


async def test_interrupted_cancellation_stops_active_run(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    run.request_cancel()
    await queue.reconcile()
    assert jobs.states[f"{run.path.name}-1"] == "ended"
    await queue.reconcile()
    assert run.read_record().status == "cancelled"
