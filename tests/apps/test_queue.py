import json
import shlex
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from apps.errors import ApiError
from apps.files import FileStore
from apps.jobs import describe_job
from apps.queue import RunQueue
from apps.runs import find_run, list_runs, name_model
from serving.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout, open_storage
from tests.apps.conftest import NotedJobs
from training.data.faults import DataError
from training.resources import ResourceError
from training.runs import RunFolder

pytestmark = pytest.mark.anyio
ROW = {"prompt": "How many loaves?", "completion": "Twelve."}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def file_id(layout: StorageLayout, tmp_path: Path) -> str:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f"{json.dumps(ROW)}\n" * 4)
    FileStore(layout).add("file-rows", rows, "rows.jsonl")
    return "file-rows"


def copy_model(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


async def create(queue: RunQueue, file_id: str, **more: Any) -> RunFolder:
    job = await queue.create({"model": "latest", "training_file": file_id, **more})
    return find_run(queue._layout, job["id"])


async def test_runs_start_in_order_one_at_a_time(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    first, second = await create(queue, file_id), await create(queue, file_id, suffix="two")
    await queue.reconcile()
    await queue.reconcile()
    assert list(jobs.commands) == [first.path.name]
    assert first.path.name in jobs.commands[first.path.name]
    first.update_record(status="succeeded")
    await queue.reconcile()
    assert list(jobs.commands) == [first.path.name, second.path.name]


async def test_a_restarted_queue_knows_everything(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    runs = [await create(queue, file_id) for _ in range(3)]
    await queue.reconcile()
    queue.close()
    with closing(RunQueue(layout, jobs)) as restarted:
        await restarted.reconcile()
        assert list(jobs.commands) == [runs[0].path.name]
        runs[0].update_record(status="succeeded")
        await restarted.reconcile()
    assert list(jobs.commands) == [runs[0].path.name, runs[1].path.name]


async def test_two_applications_on_one_storage_do_not_share_its_runs(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    run = await create(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    with closing(RunQueue(layout, NotedJobs())) as other:
        await other.reconcile()  # its cluster does not know the job
        await create(other, file_id)
        await other.reconcile()
    assert run.read_record().status == "running"
    assert list(jobs.commands) == [run.path.name]


async def test_a_run_cancelled_while_another_starts_is_never_started(
    queue: RunQueue, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create(queue, file_id)
    decided = RunQueue._start

    def start_late(self: RunQueue, waiting: RunFolder) -> None:
        queue._lock.release()  # what another thread's cancel waits for
        try:
            queue._cancel(waiting)
        finally:
            queue._lock.acquire()
        decided(self, waiting)

    monkeypatch.setattr(RunQueue, "_start", start_late)
    await queue.reconcile()
    assert run.read_record().status == "cancelled"
    assert jobs.commands == {}


async def test_a_run_whose_cancelling_was_cut_short_ends_as_cancelled(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    run.request_cancel()
    jobs.states[run.path.name] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "cancelled"


async def test_a_paused_run_is_left_alone(queue: RunQueue, jobs: NotedJobs, file_id: str) -> None:
    run = await create(queue, file_id)
    await queue.reconcile()
    run.update_record(status="paused")
    jobs.states[run.path.name] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "paused"


async def test_a_run_killed_after_it_published_ends_well(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, tiny_model: Path
) -> None:
    run = await create(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    model_id = name_model(run.read_record())
    lineage = {"run_id": run.path.name}
    durable.write_json(copy_model(tiny_model, run.model) / "lineage.json", lineage)
    ModelStore(layout).publish(run.model, model_id)
    jobs.states[run.path.name] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "succeeded"
    assert run.read_record().model_id == model_id
    assert ModelStore(layout).resolve("latest").id == model_id


async def test_a_model_of_the_same_id_is_not_taken_for_the_runs_own(
    queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str, tiny_model: Path
) -> None:
    run = await create(queue, file_id)
    await queue.reconcile()
    ModelStore(layout).add(tiny_model, name_model(run.read_record()))
    jobs.states[run.path.name] = "ended"
    await queue.reconcile()
    assert run.read_record().status == "failed"
    assert ModelStore(layout).resolve("latest").id == "tiny"


async def test_a_job_starts_from_a_path_with_a_space(
    tmp_path: Path, tiny_model: Path, jobs: NotedJobs
) -> None:
    layout = open_storage(tmp_path / "my data")
    ModelStore(layout).add(tiny_model, "tiny")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(ROW))
    FileStore(layout).add("file-rows", rows, "rows.jsonl")
    with closing(RunQueue(layout, jobs)) as queue:
        job = await queue.create({"model": "tiny", "training_file": "file-rows"})
        await queue.reconcile()
    assert shlex.split(jobs.commands[job["id"]])[-2:] == [str(layout.root), job["id"]]


async def test_a_queue_killed_before_it_started_a_job_starts_it_again(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create(queue, file_id)
    run.update_record(writer="job", job_id=run.path.name)
    await queue.reconcile()
    assert list(jobs.commands) == [run.path.name]


async def test_a_cluster_that_cannot_start_a_job_is_asked_again(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create(queue, file_id)
    jobs.refusal = RuntimeError("no agent is available")
    for _ in range(3):
        await queue.reconcile()
    told = [event["message"] for event in run.read_events() if event["level"] == "warn"]
    assert told == ["The cluster cannot start it at present, trying again: no agent is available"]
    jobs.refusal = None
    await queue.reconcile()
    assert list(jobs.commands) == [run.path.name]


@pytest.mark.parametrize(
    ("state", "logs", "reason"),
    [
        ("ended", "Killed", "its process ended before its time: Killed"),
        ("unknown", "", "the application was stopped or its process was killed"),
    ],
)
async def test_a_run_whose_job_died_is_ended_with_the_reason(
    queue: RunQueue, jobs: NotedJobs, file_id: str, state: Any, logs: str, reason: str
) -> None:
    run = await create(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    jobs.logs = logs
    jobs.states[run.path.name] = state
    await queue.reconcile()
    record = run.read_record()
    assert record.status == "failed"
    assert record.error is not None
    assert reason in record.error.message
    assert run.read_events()[-1]["level"] == "error"


async def test_a_waiting_run_is_cancelled_without_ever_starting(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create(queue, file_id)
    job = await queue.cancel(run.path.name)
    await queue.reconcile()
    assert job["status"] == "cancelled"
    assert jobs.commands == {}


async def test_a_computing_run_is_stopped(queue: RunQueue, jobs: NotedJobs, file_id: str) -> None:
    run = await create(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    job = await queue.cancel(run.path.name)
    assert job["status"] == "cancelled"
    assert jobs.states[run.path.name] == "ended"
    with pytest.raises(ApiError, match="has cancelled already") as caught:
        await queue.cancel(run.path.name)
    assert caught.value.status == 409


async def test_cancelling_and_looking_after_runs_do_not_collide(
    queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    run = await create(queue, file_id)
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
        ({"training": {"learning_rate": 0}}, ValueError, "learning_rate"),
        (
            {"hyperparameters": {"batch_size": -2}},
            ApiError,
            "batch_size is -2, expected a positive",
        ),
        ({"hyperparameters": {"batch_size": 3}}, ApiError, "batch_size is 3, expected .* of 2"),
        ({"training": {"num_workers": 64}}, ResourceError, "64 workers × 0.5 CPUs = 32 CPUs"),
        ({"training": {"train_file": "/etc/passwd"}}, ApiError, "cannot be set in 'training'"),
        ({"training_file": "file-gone"}, ApiError, "there is no file 'file-gone'"),
        ({"training_file": "../../etc"}, ApiError, "there is no file"),
        ({"suffix": "../x"}, ValueError, "suffix"),
        ({"trainig_file": "x"}, ValueError, "trainig_file"),
        ({"training": {"max_length": 1000}}, ValueError, "'tiny' has a context of 128 tokens"),
        (
            {"training": {"num_workers": 0}, "hyperparameters": {"batch_size": 2}},
            ValueError,
            "num_workers",
        ),
        ({"validation_file": "file-rows"}, ValueError, "validation_file"),
    ],
)
async def test_what_could_not_work_is_refused_before_a_job_exists(
    queue: RunQueue, layout: StorageLayout, file_id: str, change: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        await queue.create({"model": "latest", "training_file": file_id, **change})
    assert list_runs(layout) == []


async def test_bad_rows_are_named_before_a_job_exists(
    queue: RunQueue, layout: StorageLayout, tmp_path: Path
) -> None:
    rows = tmp_path / "bad.jsonl"
    rows.write_text(json.dumps(ROW) + "\n" + json.dumps({"prompt": "x"}) + "\n")
    FileStore(layout).add("file-bad", rows, "bad.jsonl")
    with pytest.raises(
        ApiError,
        match=r"bad.jsonl: 1 of 2 rows .*'completion' is missing, .* \(line 2\)",
    ) as caught:
        await queue.create({"model": "tiny", "training_file": "file-bad"})
    assert caught.value.param == "training_file"
    assert isinstance(caught.value.__cause__, DataError)
    assert list_runs(layout) == []


async def test_openais_hyperparameters_become_settings(queue: RunQueue, file_id: str) -> None:
    asked = {"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 0.5}
    run = await create(
        queue,
        file_id,
        seed=11,
        method={"type": "supervised", "supervised": {"hyperparameters": asked}},
    )
    spec = run.read_spec()
    assert (spec.epochs, spec.micro_batch_size, spec.learning_rate, spec.seed) == (2, 4, 5e-5, 11)
    assert describe_job(run)["hyperparameters"]["batch_size"] == 8


async def test_the_record_shows_what_was_asked(queue: RunQueue, file_id: str) -> None:
    run = await create(queue, file_id, suffix="bakery", metadata={"team": "ovens"})
    job = describe_job(run)
    assert job["model"] == "tiny"
    assert job["metadata"] == {"team": "ovens"}
    assert name_model(run.read_record()).startswith("tiny-bakery-")
    assert "storage" not in json.dumps(job), "no path of this machine is shown"


async def test_a_preview_marks_what_is_learned(queue: RunQueue, file_id: str) -> None:
    preview = await queue.preview(file_id, "latest", 2)
    assert len(preview["rows"]) == 2
    assert preview["num_rows"] == 4
    learned = "".join(t["text"] for t in preview["rows"][0]["tokens"] if t["learned"])
    assert learned == "Twelve.<|im_end|>"


def test_defaults_come_with_their_schema(queue: RunQueue) -> None:
    defaults = queue.get_defaults("latest")
    assert set(defaults["training"]) == set(defaults["schema"])
    assert "train_file" not in defaults["training"]
