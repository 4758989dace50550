"""One queue at a time manages a storage root, and takes over what the previous one left."""

import threading
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from apps.errors import ApiError
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.queue import RunQueue
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs, create_run

pytestmark = pytest.mark.anyio


async def test_restarted_queue_reads_its_state_from_disk(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    runs = [await create_run(queue, file_id) for _ in range(3)]
    await queue.reconcile()
    queue.close()
    with closing(RunQueue(layout, jobs)) as restarted:
        await restarted.reconcile()
        assert jobs.started == [runs[0].path.name]
        runs[0].update_record(status="succeeded")
        await restarted.reconcile()
    assert jobs.started == [runs[0].path.name, runs[1].path.name]


async def test_second_application_on_storage_does_not_manage_its_runs(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    with closing(RunQueue(layout, NotedJobs())) as other:
        await other.reconcile()  # the job does not exist in its cluster
        await create_run(other, file_id)
        await other.reconcile()
        for change in (other.cancel, other.pause, other.resume, other.delete):
            with pytest.raises(ApiError, match="^another application manages"):
                await change(run.path.name)
    assert run.read_record().status == "running"
    assert not run.is_cancel_requested
    assert not run.is_pause_requested
    assert jobs.started == [run.path.name]


async def test_claiming_storage_does_not_block_event_loop(
    queue: RunQueue, layout: StorageLayout, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    is_removing, may_end = threading.Event(), threading.Event()
    were_released: list[bool] = []

    def remove_slowly(_: Path) -> None:
        is_removing.set()
        were_released.append(may_end.wait(5))

    monkeypatch.setattr("apps.fine_tuning.queue.remove_tombstones", remove_slowly)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.pause, run.path.name)
        with anyio.fail_after(10):
            while not is_removing.is_set():
                await anyio.sleep(0.01)
        may_end.set()
    assert were_released
    assert all(were_released), "the event loop waited for the removal"
    assert run.read_record().status == "paused"


async def test_interrupted_deletion_is_completed_by_next_queue(
    queue: RunQueue,
    layout: StorageLayout,
    jobs: NotedJobs,
    file_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, kept = await create_run(queue, file_id), await create_run(queue, file_id)
    run.update_record(status="failed")
    with monkeypatch.context() as patch:
        patch.setattr("storage.tombstones.shutil.rmtree", lambda *_, **__: None)  # as if killed
        await queue.delete(run.path.name)
    assert [found.path for found, _ in RunIndex(layout).scan().runs] == [kept.path]
    assert len(list(layout.runs.iterdir())) == 2
    queue.close()
    with closing(RunQueue(layout, jobs)) as restarted:
        await restarted.reconcile()
    assert list(layout.runs.iterdir()) == [kept.path]
    assert kept.data.is_dir()


async def test_run_without_record_keeps_its_checkpoints(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    run.checkpoints.mkdir(parents=True)
    hidden = run.record_file.rename(run.path / "elsewhere")
    queue.close()
    with closing(RunQueue(layout, jobs)) as restarted:
        await restarted.reconcile()
        assert run.checkpoints.is_dir()
        hidden.rename(run.record_file)
        await restarted.reconcile()
    assert jobs.started == [run.path.name]
