import asyncio
import errno
import json
import shlex
import shutil
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from apps.errors import ApiError, InvalidInputError
from apps.file_store import FileStore
from apps.fine_tuning.cluster.tasks import Task
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import find_run, name_model
from apps.fine_tuning.job_responses import describe_job
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.scheduler import RunStarter
from apps.fine_tuning.validation.row_validation import check_file, check_job
from serving.errors import InvalidRequestError
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout, open_storage
from tests.apps.conftest import ROW, NotedJobs, copy_model, create_run, lose_run
from training.data.faults import DataError
from training.preflight.full_disk import pause_until_room
from training.run.folder import RunFolder
from training.run.lease import hold_lease
from training.run.run_events import MAX_EVENTS_BYTES
from training.run.run_record import RunError, RunStatus

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_runs_start_in_order_one_at_a_time(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    first, second = await create_run(queue, file_id), await create_run(queue, file_id, suffix="two")
    await queue.reconcile()
    await queue.reconcile()
    assert jobs.started == [first.path.name]
    assert first.path.name in jobs.commands[f"{first.path.name}-1"]
    first.update_record(status="succeeded")
    await queue.reconcile()
    assert jobs.started == [first.path.name, second.path.name]


async def test_a_restarted_queue_knows_everything(
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


async def test_two_applications_on_one_storage_do_not_share_its_runs(
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
            with pytest.raises(ApiError, match="another application looks after"):
                await change(run.path.name)
    assert run.read_record().status == "running"
    assert not run.is_cancel_requested
    assert not run.is_pause_requested
    assert jobs.started == [run.path.name]


async def test_a_run_cancelled_while_another_starts_is_never_started(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    decided = RunStarter._start

    def start_late(self: RunStarter, waiting: RunFolder) -> bool:
        queue._lock.release()  # a cancel in another thread waits for this lock
        try:
            queue._cancel(waiting)
        finally:
            queue._lock.acquire()
        return decided(self, waiting)

    monkeypatch.setattr(RunStarter, "_start", start_late)
    await queue.reconcile()
    assert run.read_record().status == "cancelled"
    assert jobs.commands == {}


async def test_a_run_whose_cancelling_was_cut_short_ends_as_cancelled(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    run.request_cancel()
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "cancelled"


async def test_a_paused_run_is_left_alone(queue: RunQueue, jobs: NotedJobs, file_id: str) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.request_pause()
    run.update_record(status="paused")
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "paused"


async def test_a_run_killed_after_it_published_ends_well(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, tiny_model: Path
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    model_id = name_model(run.read_record())
    lineage = {"run_id": run.path.name}
    durable.write_json(copy_model(tiny_model, run.model) / "lineage.json", lineage)
    ModelStore(layout).publish(run.model, model_id)
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "succeeded"
    assert run.read_record().model_id == model_id
    assert ModelStore(layout).resolve("latest").id == model_id


async def test_a_model_of_the_same_id_is_not_taken_for_the_runs_own(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, tiny_model: Path
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    ModelStore(layout).add(tiny_model, name_model(run.read_record()))
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "queued"
    assert ModelStore(layout).resolve("latest").id == "tiny"


async def test_a_job_starts_from_a_path_with_a_space(
    tmp_path: Path, tiny_model: Path, jobs: NotedJobs
) -> None:
    layout = open_storage(tmp_path / "my data")
    ModelStore(layout).add(tiny_model, "tiny")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(ROW))
    FileStore(layout).add("file-rows", rows.read_bytes(), "rows.jsonl")
    with closing(RunQueue(layout, jobs)) as queue:
        job = await queue.create({"model": "tiny", "training_file": "file-rows"})
        await queue.reconcile()
    assert shlex.split(jobs.commands[f"{job['id']}-1"])[-3:] == [
        str(layout.root),
        job["id"],
        f"{job['id']}-1",
    ]


async def test_a_queue_killed_before_it_started_a_job_starts_it_again(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    run.update_record(writer="job", job_id=f"{run.path.name}-1", num_starts=1)
    await queue.reconcile()
    assert jobs.started == [run.path.name]


async def test_many_slow_creations_hold_up_neither_a_pass_nor_a_cancel(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    may_go_on = threading.Event()

    def wait(*_: Any) -> None:
        may_go_on.wait(30)
        raise ApiError(400, "not today")

    async def create() -> None:
        with pytest.raises(ApiError, match="not today"):
            await create_run(queue, file_id)

    monkeypatch.setattr("apps.fine_tuning.submission.prepare_rows", wait)
    async with anyio.create_task_group() as creations:
        for _ in range(50):
            creations.start_soon(create)
        await anyio.wait_all_tasks_blocked()
        try:
            with anyio.fail_after(20):
                await queue.reconcile()
                await queue.cancel(run.path.name)
        finally:
            may_go_on.set()


async def test_no_check_of_files_begins_while_the_application_stops(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.fine_tuning.validation.row_validation.MAX_QUICK_BYTES", 0)
    await create_run(queue, file_id)
    await queue.drain()
    assert jobs.tasks == []


async def test_a_cluster_that_cannot_start_a_job_is_asked_again(
    queue: RunQueue, jobs: NotedJobs, file_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = await create_run(queue, file_id)
    jobs.refusal = RuntimeError("no agent is available")
    for _ in range(3):
        await queue.reconcile()
    told = [event["message"] for event in run.events.read() if event["level"] == "warn"]
    assert told == ["The cluster cannot start it at present, trying again: no agent is available"]
    logged = [record for record in caplog.records if "no agent is available" in record.getMessage()]
    assert [(record.levelname, record.exc_info) for record in logged] == [("ERROR", None)]
    jobs.refusal = None
    await queue.reconcile()
    assert jobs.started == [run.path.name]


@pytest.mark.parametrize(
    ("state", "logs", "reason"),
    [
        ("ended", "", "its process ended with signal 9 (SIGKILL). It goes on"),
        ("ended", "a\nb", "its process ended with signal 9 (SIGKILL); its last output: b. It"),
        ("unknown", "", "the Ray cluster that its process belonged to has ended. It goes on"),
    ],
)
async def test_a_run_whose_job_died_goes_on_in_its_old_place(
    queue: RunQueue, jobs: NotedJobs, file_id: str, state: Any, logs: str, reason: str
) -> None:
    run, other = await create_run(queue, file_id), await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    jobs.logs = logs
    jobs.exits[f"{run.path.name}-1"] = "its process ended with signal 9 (SIGKILL)"
    jobs.states[f"{run.path.name}-1"] = state
    await queue.reconcile()
    record = run.read_record()
    assert (record.status, record.num_lost, record.error) == ("queued", 1, None)
    event = run.events.read()[-1]
    assert event["level"] == "warn"
    assert event["message"].startswith(f"Interrupted: {reason}")
    assert list(jobs.commands) == [f"{run.path.name}-1", f"{run.path.name}-2"]
    assert other.read_record().status == "queued"


async def test_the_cause_of_an_end_is_not_guessed(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await lose_run(queue, jobs, run)
    told = run.events.read()[-1]["message"]
    assert "its process ended without a reason being recorded" in told


async def test_a_run_that_is_lost_too_often_where_it_stands_fails(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    for _ in range(3):
        await lose_run(queue, jobs, run, step=7)
        assert run.read_record().status == "queued"
    await lose_run(queue, jobs, run, step=8)  # with progress since the last loss
    for _ in range(2):
        await lose_run(queue, jobs, run, step=8)
        assert run.read_record().status == "queued"
    jobs.logs = "Killed"
    await lose_run(queue, jobs, run, step=8)
    record = run.read_record()
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.code == "interrupted"
    assert "Killed; it did so 4 times without getting on by a step" in record.error.message
    assert run.events.read()[-1]["level"] == "error"
    assert jobs.started == [run.path.name] * 7


async def test_a_run_whose_process_lives_on_without_its_job_is_not_started_twice(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    jobs.states[f"{run.path.name}-1"] = "unknown"
    with hold_lease(run):
        await queue.reconcile()
        assert run.read_record().writer == "job"
    await queue.reconcile()
    await queue.reconcile()
    assert list(jobs.commands) == [f"{run.path.name}-1", f"{run.path.name}-2"]


# Order


async def test_the_more_important_goes_first_and_two_compute_at_once(
    layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    with closing(RunQueue(layout, jobs, max_concurrent_runs=2)) as queue:
        runs = [
            await create_run(queue, file_id, priority=priority) for priority in (0, 0, 5, -1, 5)
        ]
        for _ in runs:
            await queue.reconcile()
            await queue.reconcile()
            assert len([state for state in jobs.states.values() if state == "active"]) <= 2
            (first, *_) = (job for job, state in jobs.states.items() if state == "active")
            jobs.states[first] = "ended"
            find_run(layout, first.rpartition("-")[0]).update_record(status="succeeded")
    assert jobs.started == [runs[place].path.name for place in (2, 4, 0, 1, 3)]


async def test_a_waiting_job_says_what_it_waits_for(
    layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    with closing(RunQueue(layout, jobs, max_concurrent_runs=3, reserved_cpus=0.5)) as queue:
        settings = {"num_workers": 1, "cpus_per_worker": 1.0}
        runs = [await create_run(queue, file_id, training=settings) for _ in range(3)]
        small = await create_run(queue, file_id, training={"num_workers": 1})
        await queue.reconcile()
        told = [run.read_record().waiting_for for run in (*runs, small)]
        assert told == [
            None,
            "waits for 1 CPUs, of which 0.5 are free",
            "number 2 in the queue",
            "number 3 in the queue",
        ]
        assert describe_job(small)["waiting_for"] == "number 3 in the queue"
        runs[0].update_record(status="succeeded")
        jobs.states.clear()
        await queue.reconcile()
    assert jobs.started == [runs[0].path.name, runs[1].path.name]
    assert runs[1].read_record().waiting_for is None


# Pausing


async def test_a_run_that_paused_on_a_full_disk_resumes_when_there_is_room(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    jobs.states[f"{run.path.name}-1"] = "ended"
    run.update_record(status="running")
    pause_until_room(run, run.read_spec(), OSError(errno.ENOSPC, "No space left on device"))
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


async def test_a_run_that_paused_on_a_full_disk_resumes_when_it_is_told_to(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("system.free_resources.measure_free_disk", lambda _: 1)
    run = await create_run(queue, file_id)
    await queue.reconcile()
    jobs.states[f"{run.path.name}-1"] = "ended"
    run.update_record(status="running")
    pause_until_room(run, run.read_spec(), OSError(errno.ENOSPC, "No space left on device"))
    await queue.reconcile()
    assert run.read_record().status == "paused"
    await queue.resume(run.path.name)
    await queue.reconcile()
    assert jobs.started == [run.path.name, run.path.name]


async def test_a_waiting_run_is_paused_and_waits_again_in_its_place(
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


async def test_pausing_again_and_again_adds_a_bounded_number_of_events(
    queue: RunQueue, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.pause(run.path.name)
    told = run.events.read()
    for _ in range(3):
        await queue.pause(run.path.name)
    assert run.events.read() == told, "nothing has changed"
    while run.events.path.stat().st_size < MAX_EVENTS_BYTES:
        run.events.add("x" * 200_000)
    told = run.events.read()
    assert (told[-1]["level"], told[-1]["data"]) == ("warn", {"max_bytes": MAX_EVENTS_BYTES})
    for _ in range(3):
        assert (await queue.resume(run.path.name))["status"] == "queued"
        assert (await queue.pause(run.path.name))["status"] == "paused"
    assert run.events.read() == told


async def test_a_computing_run_is_asked_to_pause_and_started_anew_to_go_on(
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
    with pytest.raises(ApiError, match="is queued, not paused") as caught:
        await queue.resume(run.path.name)
    assert caught.value.status == 409


async def test_a_run_that_is_to_pause_can_be_let_go_on(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.pause(run.path.name)
    assert (await queue.resume(run.path.name))["status"] == "running"
    assert not run.is_pause_requested


async def test_a_run_lost_while_it_was_to_pause_is_paused(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.pause(run.path.name)
    jobs.states[f"{run.path.name}-1"] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "paused"


async def test_a_paused_run_can_be_cancelled(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.pause(run.path.name)
    assert (await queue.cancel(run.path.name))["status"] == "cancelled"
    with pytest.raises(ApiError, match="has cancelled already"):
        await queue.pause(run.path.name)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_a_run_that_did_not_end_well_can_go_on_from_where_it_was(
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


async def test_a_run_that_succeeded_or_never_had_its_rows_does_not_go_on(
    queue: RunQueue, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    run.update_record(status="succeeded")
    with pytest.raises(ApiError, match="has succeeded already"):
        await queue.resume(run.path.name)
    run.update_record(status="failed")
    assert describe_job(run)["resumable"]
    shutil.rmtree(run.data)
    assert not describe_job(run)["resumable"]
    with pytest.raises(ApiError, match="before its rows were read") as caught:
        await queue.resume(run.path.name)
    assert (caught.value.status, caught.value.code) == (409, "job_ended")


# Ends


async def test_a_run_that_has_ended_is_deleted_and_no_other(
    queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    with pytest.raises(ApiError, match="is queued; cancel it first"):
        await queue.delete(run.path.name)
    await queue.cancel(run.path.name)
    await queue.delete(run.path.name)
    assert not run.path.exists()
    with pytest.raises(ApiError, match="there is no job"):
        await queue.delete(run.path.name)


async def test_a_deletion_that_was_cut_short_is_finished_by_the_next_queue(
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


async def test_a_run_whose_record_is_not_seen_keeps_its_checkpoints(
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


async def test_of_a_run_that_could_not_be_written_nothing_is_left(
    queue: RunQueue, layout: StorageLayout, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: RunFolder, *_: Any) -> None:
        assert run.path.is_dir()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "create", fail)
        with pytest.raises(ApiError, match="no room"):
            await create_run(queue, file_id)
    assert list(layout.runs.iterdir()) == []
    await create_run(queue, file_id)
    assert len(RunIndex(layout).scan().runs) == 1


async def test_the_figures_of_a_run_are_a_file_when_it_ends(
    queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    rest = dict.fromkeys(("num_steps", "epoch", "tokens_per_s", "elapsed_s", "remaining_s"), 1.0)
    run.metrics.add({"step": 1, "loss": 2.5, "learning_rate": 1e-4, **rest})
    run.metrics.add({"step": 2, "loss": 2.25, "learning_rate": 5e-5, "eval_loss": 2.0, **rest})
    job = await queue.cancel(run.path.name)
    (result,) = job["result_files"]
    files = FileStore(layout)
    assert files.get(result)["purpose"] == "fine-tune-results"
    assert files.get(result)["status"] == "processed"
    head, *lines = files.find_content(result).read_text().splitlines()
    assert head.startswith("step,train_loss,valid_loss,learning_rate")
    assert [line.split(",")[:4] for line in lines] == [
        ["1", "2.5", "", "0.0001"],
        ["2", "2.25", "2.0", "5e-05"],
    ]


# Files that are slow to read


@pytest.fixture
def nothing_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.fine_tuning.validation.row_validation.MAX_QUICK_BYTES", 0)


async def test_large_files_are_checked_aside_before_a_job_waits(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, nothing_is_quick: None
) -> None:
    run = await create_run(queue, file_id)
    assert run.read_record().status == "validating_files"
    await queue.reconcile()
    task = Task("check_job", run.path.name)
    assert task in jobs.tasks
    await queue.reconcile()
    assert jobs.tasks.count(task) == 1
    assert "are being checked" in (run.read_record().waiting_for or "")
    check_job(layout, run.path.name)
    jobs.under_way.clear()
    await queue.reconcile()
    assert run.read_record().status == "queued"
    await queue.reconcile()
    assert jobs.started == [run.path.name]


async def test_a_job_whose_large_file_is_bad_fails_with_the_lines(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, nothing_is_quick: None
) -> None:
    FileStore(layout).add("file-bad", b'{"text": "x"}\n{"text": 3}\n', "bad.jsonl")
    run = await create_run(queue, "file-bad")
    await queue.reconcile()
    check_job(layout, run.path.name)
    jobs.under_way.clear()
    await queue.reconcile()
    job = describe_job(run)
    assert job["status"] == "failed"
    assert (job["error"]["code"], job["error"]["param"]) == (
        "invalid_training_file",
        "training_file",
    )
    assert "'text' is 3, expected text (line 2)" in job["error"]["message"]


async def test_an_upload_is_checked_and_counted(
    queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    files = FileStore(layout)
    files.add("file-bad", b'{"text": 3}\n', "bad.jsonl")
    assert {file["status"] for file in files.list_files()} == {"uploaded"}
    async with asyncio.timeout(30):
        while any(file["status"] == "uploaded" for file in files.list_files()):
            await queue.reconcile()
    good, bad = files.get(file_id), files.get("file-bad")
    assert (good["status"], good["status_details"]) == ("processed", None)
    assert (good["check"]["num_rows"], good["check"]["model"]) == (4, "tiny")
    assert 0 < good["check"]["learned_share"] < 1
    assert bad["status"] == "error"
    assert "'text' is 3, expected text (line 1)" in bad["status_details"]
    assert str(layout.root) not in bad["status_details"]


async def test_large_uploads_are_checked_one_after_the_other(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, nothing_is_quick: None
) -> None:
    FileStore(layout).add("file-x", b'{"text": "x"}\n', "x.jsonl")
    for _ in range(2):
        await queue.reconcile()
    assert jobs.tasks == [Task("check_file", file_id)]
    check_file(layout, file_id)
    jobs.under_way.clear()
    await queue.reconcile()
    assert jobs.tasks[1:] == [Task("check_file", "file-x")]


async def test_rows_to_evaluate_on_come_from_a_file_of_their_own(
    queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    FileStore(layout).add("file-more", f"{json.dumps(ROW)}\n".encode(), "more.jsonl")
    run = await create_run(queue, file_id, validation_file="file-more")
    assert run.read_data_summary()["validation"]["num_rows"] == 1
    assert describe_job(run)["validation_file"] == "file-more"
    FileStore(layout).add("file-bad", b'{"text": 3}\n', "bad.jsonl")
    with pytest.raises(ApiError, match="'text' is 3") as caught:
        await create_run(queue, file_id, validation_file="file-bad")
    assert caught.value.param == "validation_file"


async def test_a_waiting_run_is_cancelled_without_ever_starting(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    job = await queue.cancel(run.path.name)
    await queue.reconcile()
    assert job["status"] == "cancelled"
    assert jobs.commands == {}


async def test_a_computing_run_is_stopped(queue: RunQueue, jobs: NotedJobs, file_id: str) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    job = await queue.cancel(run.path.name)
    assert job["status"] == "cancelled"
    assert jobs.states[f"{run.path.name}-1"] == "ended"
    with pytest.raises(ApiError, match="has cancelled already") as caught:
        await queue.cancel(run.path.name)
    assert caught.value.status == 409


async def test_cancelling_and_looking_after_runs_do_not_collide(
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


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"training": {"learning_rate": 0}}, InvalidInputError, "learning_rate"),
        (
            {"hyperparameters": {"batch_size": -2}},
            InvalidRequestError,
            "expected 'auto' or a number of at least 1, found -2",
        ),
        ({"hyperparameters": {"batch_size": 3}}, ApiError, "batch_size is 3, expected .* of 2"),
        ({"training": {"num_workers": 64}}, ApiError, "64 workers × 0.5 CPUs = 32 CPUs"),
        ({"training": {"train_file": "/etc/passwd"}}, ApiError, "cannot be set in 'training'"),
        ({"training_file": "file-gone"}, ApiError, "there is no file 'file-gone'"),
        ({"training_file": "../../etc"}, ApiError, "there is no file"),
        ({"suffix": "../x"}, InvalidRequestError, "suffix"),
        ({"trainig_file": "x"}, InvalidRequestError, "trainig_file"),
        (
            {"training": {"max_length": 1000}},
            InvalidInputError,
            "'tiny' has a context of 128 tokens",
        ),
        (
            {"training": {"num_workers": 0}, "hyperparameters": {"batch_size": 2}},
            InvalidInputError,
            "num_workers",
        ),
        ({"validation_file": "file-gone"}, ApiError, "there is no file 'file-gone'"),
        (
            {"validation_file": "file-rows", "training": {"validation_fraction": 0.5}},
            InvalidInputError,
            "validation_file and validation_fraction are set",
        ),
        ({"metadata": {"k" * 65: "v"}}, InvalidRequestError, "metadata"),
        ({"priority": 101}, InvalidRequestError, "priority"),
    ],
)
async def test_what_could_not_work_is_refused_before_a_job_exists(
    queue: RunQueue, layout: StorageLayout, file_id: str, change: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        await queue.create({"model": "latest", "training_file": file_id, **change})
    assert RunIndex(layout).scan().runs == []


async def test_bad_rows_are_named_before_a_job_exists(
    queue: RunQueue, layout: StorageLayout, tmp_path: Path
) -> None:
    rows = tmp_path / "bad.jsonl"
    rows.write_text(json.dumps(ROW) + "\n" + json.dumps({"prompt": "x"}) + "\n")
    FileStore(layout).add("file-bad", rows.read_bytes(), "bad.jsonl")
    with pytest.raises(
        ApiError,
        match=r"bad.jsonl: 1 of 2 rows .*'completion' is missing, .* \(line 2\)",
    ) as caught:
        await queue.create({"model": "tiny", "training_file": "file-bad"})
    assert caught.value.param == "training_file"
    assert isinstance(caught.value.__cause__, DataError)
    assert RunIndex(layout).scan().runs == []


async def test_openais_hyperparameters_become_settings(queue: RunQueue, file_id: str) -> None:
    asked = {"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 0.5}
    run = await create_run(
        queue,
        file_id,
        seed=11,
        method={"type": "supervised", "supervised": {"hyperparameters": asked}},
    )
    spec = run.read_spec()
    assert (spec.epochs, spec.micro_batch_size, spec.learning_rate, spec.seed) == (2, 4, 5e-5, 11)
    assert describe_job(run)["hyperparameters"]["batch_size"] == 8


async def test_the_record_shows_what_was_asked(queue: RunQueue, file_id: str) -> None:
    run = await create_run(queue, file_id, suffix="bakery", metadata={"team": "ovens"})
    job = describe_job(run)
    assert job["model"] == "tiny"
    assert job["metadata"] == {"team": "ovens"}
    assert name_model(run.read_record()).startswith("tiny-bakery-")
    assert "storage" not in json.dumps(job), "no path of this machine is shown"


async def test_a_preview_marks_what_is_learned(queue: RunQueue, file_id: str) -> None:
    preview = await queue.preview(file_id, "latest", 2, {})
    assert len(preview["rows"]) == 2
    assert preview["num_rows"] == 4
    learned = "".join(t["text"] for t in preview["rows"][0]["tokens"] if t["learned"])
    assert learned == "Twelve.<|im_end|>"


async def test_a_preview_follows_the_settings(queue: RunQueue, layout: StorageLayout) -> None:
    rows = b'{"question": "How many?", "answer": "Twelve."}\n' * 4
    FileStore(layout).add("file-columns", rows, "rows.jsonl")
    columns = {"columns": {"prompt": "question", "completion": "answer"}}
    preview = await queue.preview("file-columns", "latest", 1, columns)
    learned = "".join(t["text"] for t in preview["rows"][0]["tokens"] if t["learned"])
    assert learned == "Twelve.<|im_end|>"


async def test_a_preview_refuses_settings_as_a_job_does(queue: RunQueue, file_id: str) -> None:
    for training in ({f"unknown_{number}": 1 for number in range(70)}, {"epochs": "many"}):
        with pytest.raises((InvalidRequestError, InvalidInputError)):
            await queue.preview(file_id, "latest", 1, training)


def test_defaults_come_with_their_schema(queue: RunQueue) -> None:
    defaults = queue.get_defaults("latest")
    assert set(defaults["training"]) == set(defaults["schema"])
    assert "train_file" not in defaults["training"]


# Shutting down


async def test_a_shutdown_pauses_what_computes_and_the_next_queue_continues_it(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run, waiting = await create_run(queue, file_id), await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    assert not await queue.drain()
    assert run.requested_pause_reason == "shutdown"
    run.mark_paused()  # as the run's process does
    jobs.states[f"{run.path.name}-1"] = "ended"
    assert await queue.drain()
    assert await queue.drain()
    assert run.read_record().pause_reason == "shutdown"
    assert waiting.read_record().status == "queued"
    assert jobs.started == [run.path.name], "nothing starts during a shutdown"
    queue.close()

    after = RunQueue(queue._layout, jobs, reserved_cpus=0.5)
    await after.reconcile()
    await after.reconcile()
    record = run.read_record()
    assert (record.status, record.pause_reason, record.num_lost) == ("queued", None, 0)
    assert jobs.started == [run.path.name] * 2, "in its old place"
    after.close()


async def test_a_shutdown_leaves_what_a_user_paused_paused(
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
    after = RunQueue(queue._layout, jobs, reserved_cpus=0.5)
    await after.reconcile()
    await after.reconcile()
    for paused in (run, asked):
        record = paused.read_record()
        assert (record.status, record.pause_reason) == ("paused", "user")
    after.close()


async def test_a_run_that_a_shutdown_killed_continues_too(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.drain()
    jobs.states[f"{run.path.name}-1"] = "ended"
    queue.close()
    after = RunQueue(queue._layout, jobs, reserved_cpus=0.5)
    await after.reconcile()
    assert run.read_record().status == "queued"
    assert not run.is_pause_requested
    after.close()


async def test_what_a_shutdown_paused_stays_paused_if_a_user_pauses_it(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.drain()
    run.mark_paused()  # as the run's process does
    jobs.states[f"{run.path.name}-1"] = "ended"
    assert (await queue.pause(run.path.name))["status"] == "paused"
    assert run.read_record().pause_reason == "user"
    assert run.events.read()[-1]["message"] == "Paused"


async def test_taking_over_a_storage_blocks_no_other_request(
    queue: RunQueue, layout: StorageLayout, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    is_removing, may_end = threading.Event(), threading.Event()
    were_told: list[bool] = []

    def remove_slowly(_: Path) -> None:
        is_removing.set()
        were_told.append(may_end.wait(5))

    monkeypatch.setattr("apps.fine_tuning.queue.remove_tombstones", remove_slowly)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.pause, run.path.name)
        with anyio.fail_after(10):
            while not is_removing.is_set():
                await anyio.sleep(0.01)
        may_end.set()
    assert were_told
    assert all(were_told), "the event loop waited for the removal"
    assert run.read_record().status == "paused"


async def test_a_shutdown_pause_ends_though_the_runs_could_not_be_listed_at_first(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.drain()
    run.mark_paused()  # as the run's process does
    jobs.states[f"{run.path.name}-1"] = "ended"
    queue.close()

    def fail(_: RunIndex) -> None:
        raise OSError(errno.EIO, "I/O error")

    after = RunQueue(queue._layout, jobs, reserved_cpus=0.5)
    with monkeypatch.context() as patched:
        patched.setattr(RunIndex, "scan_unfinished", fail)
        with pytest.raises(OSError, match="I/O error"):
            await after.reconcile()
    await after.reconcile()
    assert run.read_record().status == "queued"
    after.close()


async def test_a_shutdown_pause_ends_though_the_record_could_not_be_read_at_first(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    await queue.drain()
    run.mark_paused()  # as the run's process does
    jobs.states[f"{run.path.name}-1"] = "ended"
    queue.close()
    content = run.record_file.read_bytes()
    run.record_file.write_bytes(b"{")
    after = RunQueue(queue._layout, jobs, reserved_cpus=0.5)
    await after.reconcile()
    run.record_file.write_bytes(content)
    await after.reconcile()
    assert run.read_record().status == "queued"
    after.close()
