"""The queue with full disks, killed processes and unreadable records."""

import asyncio
import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.errors import ApiError
from apps.file_store import FileStore
from apps.fine_tuning import run_endings as endings
from apps.fine_tuning.cluster.job_runner import JobState
from apps.fine_tuning.index.run_lookup import name_model
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.scheduler import tell_waiting
from apps.fine_tuning.validation.row_thread import RowThread
from apps.fine_tuning.validation.row_validation import check_job
from apps.fine_tuning.validation.validation_tasks import CheckDesk
from serving.store.model_names import LATEST_ALIAS
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs, copy_model, create_run, lose_run
from training import launch
from training.run.folder import RunFolder
from training.run.lease import hold_lease

pytestmark = pytest.mark.anyio
FIGURES = {
    "step": 1.0,
    "loss": 2.5,
    "learning_rate": 1e-4,
    **dict.fromkeys(("num_steps", "epoch", "tokens_per_s", "elapsed_s", "remaining_s"), 1.0),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def fill_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def list_messages(run: RunFolder) -> list[str]:
    return [event["message"] for event in run.read_events()]


# Cancelling


@pytest.mark.parametrize("was_paused", [False, True])
async def test_a_cancel_cut_short_before_its_end_is_ended_and_blocks_nobody(
    queue: RunQueue, jobs: NotedJobs, file_id: str, was_paused: bool
) -> None:
    run, other = await create_run(queue, file_id), await create_run(queue, file_id)
    if was_paused:
        await queue.pause(run.path.name)
    run.request_cancel()
    with pytest.raises(ApiError, match="is being cancelled"):
        await queue.resume(run.path.name)
    await queue.reconcile()
    assert run.read_record().status == "cancelled"
    assert jobs.started == [other.path.name]


async def test_a_cancel_cut_short_stops_what_computes(
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


async def test_a_cancelled_run_has_not_ended_before_its_process(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.fine_tuning.queue.STOP_TIMEOUT_S", 0.2)
    run, other = await create_run(queue, file_id), await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    with hold_lease(run):  # a process that has outlived its job holds the lease
        with pytest.raises(ApiError, match="did not stop") as caught:
            await queue.cancel(run.path.name)
        await queue.reconcile()
        assert run.read_record().status == "running"
    assert caught.value.status == 504
    await queue.reconcile()
    assert run.read_record().status == "cancelled"
    await queue.reconcile()
    assert jobs.started == [run.path.name, other.path.name]


async def test_a_cancel_leaves_alone_what_was_resumed_while_it_waited(
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


async def test_a_look_leaves_alone_what_failed_and_was_resumed_meanwhile(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()

    def find_state(job_id: str) -> JobState:
        run.update_record(status="failed")
        asyncio.run(queue.resume(run.path.name))
        monkeypatch.undo()
        return "ended"

    monkeypatch.setattr(jobs, "find_state", find_state)
    run.update_record(status="running")
    await queue.reconcile()
    assert run.read_record().num_lost == 0
    assert run.read_record().num_starts == 2
    assert not any(message.startswith("Interrupted") for message in list_messages(run))


async def test_a_run_deleted_during_a_change_is_reported_as_not_found(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    run.update_record(status="failed")

    def delete_run(*_: Any) -> bool:
        shutil.rmtree(run.path)
        return True

    monkeypatch.setattr("apps.fine_tuning.queue.is_resumable", delete_run)
    with pytest.raises(ApiError) as caught:
        await queue.resume(run.path.name)
    assert caught.value.status == 404


async def test_a_process_that_lost_its_run_to_the_queue_does_not_fail_it(
    queue: RunQueue, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    assert run.read_record().writer == "queue"
    launch.fail_run(run, RuntimeError("an old process, late"))
    assert run.read_record().status == "queued"
    assert "an old process, late" not in list_messages(run)


async def test_a_resumed_run_has_no_result_file_of_its_earlier_end(
    queue: RunQueue, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    run.add_metrics(FIGURES)
    assert (await queue.cancel(run.path.name))["result_files"]
    assert (await queue.resume(run.path.name))["result_files"] == []


# Pausing


async def test_a_paused_run_waits_for_nothing(queue: RunQueue, file_id: str) -> None:
    run = await create_run(queue, file_id)
    await queue.pause(run.path.name)
    tell_waiting(run, "number 2 in the queue")  # determined just before the pause
    assert run.read_record().waiting_for is None


async def test_a_run_that_pauses_after_it_was_let_go_on_goes_on(
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


# Faults of one run


async def test_settings_that_cannot_be_read_hold_up_no_other_run(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run, other = await create_run(queue, file_id), await create_run(queue, file_id)
    settings = durable.read_json(run.spec_file)
    run.spec_file.write_text(json.dumps({**settings, "lr_schedule": "of another version"}))
    await queue.reconcile()
    assert jobs.started == [other.path.name]
    assert "its settings cannot be read" in str(run.read_record().waiting_for)
    run.spec_file.write_text(json.dumps(settings))
    other.update_record(status="succeeded")
    await queue.reconcile()
    assert jobs.started == [other.path.name, run.path.name]


async def test_settings_of_a_computing_run_that_cannot_be_read_still_take_its_place(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run, other = await create_run(queue, file_id), await create_run(queue, file_id)
    await queue.reconcile()
    run.spec_file.write_text("{")
    await queue.reconcile()
    assert jobs.started == [run.path.name]
    assert other.read_record().waiting_for == "number 1 in the queue"


async def test_a_run_for_which_a_node_is_gone_waits_and_holds_up_no_other(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    jobs.nodes = [{"CPU": 8.0}, {"CPU": 2.0}]
    large = await create_run(queue, file_id, training={"num_workers": 4, "cpus_per_worker": 2.0})
    small = await create_run(queue, file_id)
    jobs.nodes = [{"CPU": 2.0}]
    await queue.reconcile()
    assert jobs.started == [small.path.name]
    assert "too little at present: 4 workers" in str(large.read_record().waiting_for)
    jobs.nodes = [{"CPU": 8.0}, {"CPU": 2.0}]
    small.update_record(status="succeeded")
    await queue.reconcile()
    assert jobs.started == [small.path.name, large.path.name]


async def test_a_run_lost_earlier_and_earlier_fails_in_the_end(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    for step in (97, 95, 96):
        await lose_run(queue, jobs, run, step)
        assert run.read_record().status == "queued"
    await lose_run(queue, jobs, run, 97)
    assert run.read_record().status == "failed"


# A full disk


async def test_a_full_disk_keeps_no_run_from_ending(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    run.add_metrics(FIGURES)
    monkeypatch.setattr(FileStore, "add", fill_disk)
    assert (await queue.cancel(run.path.name))["status"] == "cancelled"
    assert run.read_record().result_file is None


async def test_what_cannot_be_recorded_is_told_once(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "update_record", fill_disk)
        with pytest.raises(ApiError, match="no room") as caught:
            await queue.cancel(run.path.name)
        assert caught.value.status == 507
        for _ in range(3):
            await queue.reconcile()
    await queue.reconcile()
    assert run.read_record().status == "cancelled"
    assert list_messages(run).count("The fine-tune was cancelled") == 1


async def test_a_published_model_is_latest_though_the_disk_is_full_then(
    queue: RunQueue,
    layout: StorageLayout,
    file_id: str,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    run.add_metrics(FIGURES)
    model_id = name_model(run.read_record())
    durable.write_json(
        copy_model(tiny_model, run.model) / "lineage.json", {"run_id": run.path.name}
    )
    models = ModelStore(layout)
    models.publish(run.model, model_id)
    monkeypatch.setattr(FileStore, "add", fill_disk)
    endings.finish_published(layout, run)
    assert (run.read_record().status, run.read_record().model_id) == ("succeeded", model_id)
    assert models.resolve(LATEST_ALIAS).id == model_id


# Checks of files


@pytest.fixture
def nothing_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.fine_tuning.validation.row_validation.MAX_QUICK_BYTES", 0)


@pytest.fixture
def rows() -> Iterator[RowThread]:
    rows = RowThread()
    yield rows
    rows.close()


async def test_a_check_whose_process_dies_is_begun_again_but_not_for_ever(
    queue: RunQueue,
    layout: StorageLayout,
    jobs: NotedJobs,
    rows: RowThread,
    file_id: str,
    nothing_is_quick: None,
) -> None:
    run = await create_run(queue, file_id)
    now = 0.0
    desk = CheckDesk(layout, jobs, rows, clock=lambda: now)
    for number, pause_s in enumerate((5.0, 30.0, 120.0, 600.0), 1):
        assert desk.look_after_job(run) == "its files are being checked"
        jobs.under_way.clear()
        assert "to be checked again" in str(desk.look_after_job(run))
        assert len(jobs.tasks) == number
        now += pause_s
    assert desk.look_after_job(run) == "its files are being checked"
    jobs.under_way.clear()
    refusal = desk.look_after_job(run)
    assert isinstance(refusal, dict)
    assert refusal["code"] == "interrupted"


async def test_a_full_disk_is_no_fault_of_the_rows(
    queue: RunQueue,
    layout: StorageLayout,
    jobs: NotedJobs,
    file_id: str,
    nothing_is_quick: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    with monkeypatch.context() as patch:
        patch.setattr("training.data.prepare.prepare_data", fill_disk)
        with pytest.raises(OSError, match="No space left"):
            check_job(layout, run.path.name)
    check_job(layout, run.path.name)  # another attempt, with free space
    jobs.under_way.clear()
    await queue.reconcile()
    assert run.read_record().status == "queued"


async def test_a_file_is_not_deleted_under_a_job_that_is_being_created(
    queue: RunQueue,
    layout: StorageLayout,
    file_id: str,
    nothing_is_quick: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals: list[ApiError] = []

    def delete_file(*_: Any) -> None:
        with pytest.raises(ApiError, match="is being created") as caught:
            FileStore(layout).delete(file_id)
        refusals.append(caught.value)

    monkeypatch.setattr("apps.fine_tuning.submission.check_resources", delete_file)
    await create_run(queue, file_id)
    assert [refusal.status for refusal in refusals] == [409]
    FileStore(layout).delete(file_id)
    with pytest.raises(ApiError, match="there is no file"):
        await create_run(queue, file_id)


async def test_a_job_that_the_disk_has_no_room_for_is_refused_as_that(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.fine_tuning.submission.check_resources", fill_disk)
    with pytest.raises(ApiError, match="no room") as caught:
        await create_run(queue, file_id)
    assert caught.value.status == 507
