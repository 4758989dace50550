"""Reconcile passes: paused runs, and the shutdown of the application."""

import errno

import pytest

from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.job_responses import describe_job
from apps.fine_tuning.queue import RunQueue
from tests.apps.conftest import NotedJobs, create_run
from training.monitoring.full_disk_pause import record_full_disk_pause
from training.run import run_state

pytestmark = pytest.mark.anyio


async def test_paused_run_stays_paused(queue: RunQueue, jobs: NotedJobs, file_id: str) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.request_pause()
    run.update_record(status="paused")
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "paused"


async def test_run_paused_on_full_disk_resumes_when_space_is_free(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    jobs.states[f"{run.path.name}-1"] = "ended"
    run.update_record(status="running")
    record_full_disk_pause(run, run.read_spec(), OSError(errno.ENOSPC, "No space left on device"))
    free_bytes = 1
    monkeypatch.setattr("system.free_resources.measure_free_disk", lambda _: free_bytes)
    await queue.reconcile()
    record = run.read_record()
    assert record.status == "paused"
    assert "room on the disk" in str(describe_job(run)["waiting_for"])
    free_bytes = 1 << 40
    await queue.reconcile()
    await queue.reconcile()
    assert jobs.started == [run.path.name, run.path.name]
    assert run.read_record().needed_bytes is None


async def test_shutdown_pauses_active_runs_and_next_queue_resumes_them(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run, waiting = await create_run(queue, file_id), await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    assert not await queue.drain()
    assert run.requested_pause_reason == "shutdown"
    run_state.pause(run)  # as the run's process does
    jobs.states[f"{run.path.name}-1"] = "ended"
    assert await queue.drain()
    assert await queue.drain()
    assert run.read_record().pause_reason == "shutdown"
    assert waiting.read_record().status == "queued"
    assert jobs.started == [run.path.name], "a run was started during the shutdown"
    queue.close()

    after = RunQueue(queue.layout, jobs, reserved_cpus=0.5)
    await after.reconcile()
    await after.reconcile()
    record = run.read_record()
    assert (record.status, record.pause_reason, record.num_lost) == ("queued", None, 0)
    assert jobs.started == [run.path.name] * 2, "the run lost its position in the queue"
    after.close()


async def test_shutdown_does_not_end_pauses_of_users(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run, asked = await create_run(queue, file_id), await create_run(queue, file_id, priority=9)
    await queue.pause(run.path.name)
    await queue.reconcile()
    asked.update_record(status="running")
    await queue.pause(asked.path.name)  # the run's process is killed before it has paused
    await queue.drain()
    assert asked.requested_pause_reason == "user"
    jobs.states[f"{asked.path.name}-1"] = "ended"
    queue.close()
    after = RunQueue(queue.layout, jobs, reserved_cpus=0.5)
    await after.reconcile()
    await after.reconcile()
    for paused in (run, asked):
        record = paused.read_record()
        assert (record.status, record.pause_reason) == ("paused", "user")
    after.close()


async def test_run_killed_by_shutdown_is_queued_again(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.drain()
    jobs.states[f"{run.path.name}-1"] = "ended"
    queue.close()
    after = RunQueue(queue.layout, jobs, reserved_cpus=0.5)
    await after.reconcile()
    assert run.read_record().status == "queued"
    assert not run.is_pause_requested
    after.close()


async def test_run_paused_by_shutdown_stays_paused_after_user_pause(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.drain()
    run_state.pause(run)  # as the run's process does
    jobs.states[f"{run.path.name}-1"] = "ended"
    assert (await queue.pause(run.path.name))["status"] == "paused"
    assert run.read_record().pause_reason == "user"
    assert run.events.read()[-1]["message"] == "Paused"


async def test_shutdown_pause_ends_after_failed_listing_of_runs(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.drain()
    run_state.pause(run)  # as the run's process does
    jobs.states[f"{run.path.name}-1"] = "ended"
    queue.close()

    def fail(_: RunIndex) -> None:
        raise OSError(errno.EIO, "I/O error")

    after = RunQueue(queue.layout, jobs, reserved_cpus=0.5)
    with monkeypatch.context() as patched:
        patched.setattr(RunIndex, "scan_unfinished", fail)
        with pytest.raises(OSError, match=r"^\[Errno 5\] I/O error$"):
            await after.reconcile()
    await after.reconcile()
    assert run.read_record().status == "queued"
    after.close()


async def test_shutdown_pause_ends_after_failed_read_of_record(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.drain()
    run_state.pause(run)  # as the run's process does
    jobs.states[f"{run.path.name}-1"] = "ended"
    queue.close()
    content = run.record_file.read_bytes()
    run.record_file.write_bytes(b"{")
    after = RunQueue(queue.layout, jobs, reserved_cpus=0.5)
    await after.reconcile()
    run.record_file.write_bytes(content)
    await after.reconcile()
    assert run.read_record().status == "queued"
    after.close()
