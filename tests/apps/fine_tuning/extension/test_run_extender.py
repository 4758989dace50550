"""Jobs that continue succeeded ones: what is refused, and what becomes of those accepted."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from apps.errors import ApiError, InvalidInputError
from apps.file_store import FileStore
from apps.fine_tuning.cluster.tasks import Task
from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import find_run, name_model
from apps.fine_tuning.job_responses import describe_job
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.validation.row_validation import check_job
from apps.fine_tuning.validation.validation_attempts import MAX_ATTEMPTS, AttemptCounter
from apps.settings import UsageLimits
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from tests.apps.conftest import AppClient, NotedJobs
from tests.apps.fine_tuning.conftest import FIGURES, fill_disk
from tests.apps.fine_tuning.extension.conftest import (
    MODEL,
    NUM_STEPS,
    add_checkpoint,
    create_succeeded,
    extend,
)
from training.checkpoint.format import list_checkpoints
from training.run.continuation import COPY_LOCK, copy_state
from training.run.folder import RunFolder
from training.run.run_record import Extension, RunStatus

pytestmark = pytest.mark.anyio


def read_all(run: RunFolder) -> dict[str, bytes]:
    files = (path for path in run.path.rglob("*") if path.is_file())
    return {str(path.relative_to(run.path)): path.read_bytes() for path in files}


async def copy(queue: RunQueue, jobs: NotedJobs, run: RunFolder) -> None:
    """Let the task of a new extension copy what it needs, and reconcile."""
    await queue.reconcile()
    assert Task("check_job", run.path.name) in jobs.tasks
    check_job(queue.layout, run.path.name)
    jobs.running.clear()
    await queue.reconcile()


async def test_extension_continues_a_succeeded_job(
    queue: RunQueue, jobs: NotedJobs, succeeded: RunFolder
) -> None:
    before = read_all(succeeded)
    job = await queue.extend(succeeded.path.name, {"epochs": 5})
    assert (job["status"], job["extended_from"]) == ("validating_files", succeeded.path.name)
    assert (job["training"]["epochs"], job["hyperparameters"]["n_epochs"]) == (5, 5)
    run = find_run(queue.layout, job["id"])
    record, old = run.read_record(), succeeded.read_record()
    assert record.request == {**old.request, "training": {"epochs": 5, "micro_batch_size": 2}}
    assert record.extends == (Extension(epochs=2, step=NUM_STEPS, model_id=MODEL, ended_at=5),)
    assert (record.base_revision, record.priority) == (old.base_revision, 3)
    assert record.training_filename == "rows.jsonl"
    assert name_model(record) == f"tiny-bread-{record.id[-6:]}" != name_model(old)
    assert run.read_spec() == succeeded.read_spec().model_copy(update={"epochs": 5})
    await queue.reconcile()
    assert (run.read_record().waiting_for or "").endswith(" are being copied")
    await copy(queue, jobs, run)
    assert run.read_record().status == "queued"
    assert len(run.metrics.read()) == NUM_STEPS
    await queue.reconcile()
    assert jobs.started == [run.path.name]
    assert read_all(succeeded) == before, "the extended run was changed"


async def test_steps_to_come_are_unknown_until_the_first_one(
    queue: RunQueue, jobs: NotedJobs, succeeded: RunFolder
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    await copy(queue, jobs, run)
    progress = describe_job(run)["progress"]
    assert progress is not None
    assert (progress["step"], progress["num_steps"], progress["remaining_s"]) == (4, None, None)
    run.metrics.add({**FIGURES, "step": 5, "num_steps": 6})
    progress = describe_job(run)["progress"]
    assert progress is not None
    assert progress["num_steps"] == 6


async def test_suffix_may_differ(queue: RunQueue, succeeded: RunFolder) -> None:
    run = await extend(queue, succeeded, epochs=3, suffix="longer")
    assert name_model(run.read_record()).startswith("tiny-longer-")


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (
            {"epochs": 2},
            "epochs is 2, and job 'ID' ended with epochs 2: expected at least 3",
            "epochs",
        ),
        (
            {"epochs": 1},
            "epochs is 1, and job 'ID' ended with epochs 2: expected at least 3",
            "epochs",
        ),
        ({"epochs": 2000}, "epochs is 2000: ", "epochs"),
        ({"epochs": 0}, "'epochs': ", "epochs"),
        ({"epochs": True}, "'epochs': found a boolean True", "epochs"),
        ({"epochs": "three"}, "'epochs': ", "epochs"),
        ({"epochs": None}, "expected 'epochs'", None),
        ({}, "expected 'epochs'", None),
        ({"max_steps": 9}, "job 'ID' ended with epochs 2: set epochs to at least 3", "epochs"),
        (
            {"epochs": 3, "max_steps": 9},
            "max_steps is 9, and job 'ID' was not limited by it: leave it out, and set epochs",
            "max_steps",
        ),
        ({"epochs": 3, "suffix": "../x"}, "'suffix': ", "suffix"),
        ({"epochs": 3, "learning_rate": 1}, "'learning_rate' is not a known parameter", None),
    ],
)
async def test_invalid_length_is_refused(
    queue: RunQueue, client: AppClient, succeeded: RunFolder, body: Any, message: str, param: str
) -> None:
    answer = await client.post(f"/v1/fine_tuning/jobs/{succeeded.path.name}/extend", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"].startswith(message.replace("ID", succeeded.path.name))
    assert param is None or error["param"] == param
    assert len(RunIndex(queue.layout).scan().runs) == 1


async def test_run_that_ended_at_max_steps_needs_more_of_them(
    queue: RunQueue, file_id: str
) -> None:
    source = await create_succeeded(queue, file_id, max_steps=NUM_STEPS)
    with pytest.raises(
        InvalidInputError, match="ended with max_steps 4: set max_steps to at least 5"
    ):
        await extend(queue, source, epochs=3)
    with pytest.raises(InvalidInputError, match=r"^max_steps is 4, .*: expected at least 5$"):
        await extend(queue, source, max_steps=4)
    with pytest.raises(InvalidInputError, match="^max_steps is 9, but epochs is 2, which takes 4 "):
        await extend(queue, source, max_steps=9)
    spec = (await extend(queue, source, max_steps=9, epochs=5)).read_spec()
    assert (spec.epochs, spec.max_steps) == (5, 9)


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        ("failed", "resume it instead"),
        ("cancelled", "resume it instead"),
        ("paused", "resume it instead"),
        ("running", "wait until it has succeeded"),
        ("queued", "wait until it has succeeded"),
    ],
)
async def test_only_succeeded_jobs_are_extended(
    queue: RunQueue, succeeded: RunFolder, status: RunStatus, advice: str
) -> None:
    succeeded.update_record(status=status)
    message = f"is {status}, expected one that has succeeded; {advice}$"
    with pytest.raises(ApiError, match=message) as caught:
        await extend(queue, succeeded, epochs=3)
    assert (caught.value.status, caught.value.code) == (409, "job_not_succeeded")


async def test_unknown_job_is_not_extended(client: AppClient, file_id: str) -> None:
    answer = await client.post("/v1/fine_tuning/jobs/ftjob-gone/extend", json={"epochs": 3})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "there is no job 'ftjob-gone'"


@pytest.mark.parametrize(("folder", "gone"), [("ray", "checkpoints"), ("data", "rows")])
async def test_job_whose_state_is_gone_is_refused(
    queue: RunQueue, succeeded: RunFolder, folder: str, gone: str
) -> None:
    shutil.rmtree(succeeded.path / folder)
    with pytest.raises(ApiError, match=f"^the {gone} of job .* are gone, .*create a new") as caught:
        await extend(queue, succeeded, epochs=3)
    assert caught.value.status == 409


async def test_job_whose_base_model_was_deleted_is_refused(
    queue: RunQueue, layout: StorageLayout, tiny_model: Path, succeeded: RunFolder
) -> None:
    store = ModelStore(layout)
    store.add(tiny_model, "other")
    store.point_alias("latest", "other")
    store.delete("tiny", lambda: None)
    with pytest.raises(ApiError, match="started from model 'tiny', which was deleted") as caught:
        await extend(queue, succeeded, epochs=3)
    assert caught.value.status == 409


async def test_job_whose_base_model_was_replaced_is_refused(
    queue: RunQueue, succeeded: RunFolder
) -> None:
    now = succeeded.read_record().base_revision
    succeeded.update_record(base_revision="sha256:1")
    with pytest.raises(ApiError) as caught:
        await extend(queue, succeeded, epochs=3)
    assert (caught.value.status, caught.value.code) == (409, "base_model_changed")
    assert "started from revision sha256:1 of model 'tiny'" in caught.value.message
    assert f"was replaced by revision {now}" in caught.value.message
    assert f"a new job from {MODEL!r}" in caught.value.message
    assert len(RunIndex(queue.layout).scan().runs) == 1


async def test_uploaded_file_is_not_needed(
    queue: RunQueue, jobs: NotedJobs, succeeded: RunFolder, file_id: str
) -> None:
    FileStore(queue.layout).delete(file_id)
    run = await extend(queue, succeeded, epochs=3)
    await copy(queue, jobs, run)
    assert run.read_record().status == "queued"
    assert describe_job(run)["training_filename"] == "rows.jsonl"


async def test_usage_limits_apply(
    layout: StorageLayout, jobs: NotedJobs, queue: RunQueue, succeeded: RunFolder
) -> None:
    queue.close()
    stored = ModelSizes(layout).measure()
    for limits, code in (
        (UsageLimits(max_jobs=1), "too_many_jobs"),
        (UsageLimits(max_model_store_bytes=stored + 900), "model_store_full"),
    ):
        with closing(RunQueue(layout, jobs, limits=limits)) as limited:
            with pytest.raises(ApiError) as caught:
                await extend(limited, succeeded, epochs=3)
            assert caught.value.code == code
    assert len(RunIndex(layout).scan().runs) == 1


async def test_space_of_accepted_extensions_is_reserved(
    layout: StorageLayout, jobs: NotedJobs, queue: RunQueue, file_id: str, succeeded: RunFolder
) -> None:
    queue.close()
    sizes = ModelSizes(layout)
    room = sizes.measure_model("tiny") + 2900  # the new model and two copies of 1000 bytes
    limits = UsageLimits(max_model_store_bytes=sizes.measure() + room)
    with closing(RunQueue(layout, jobs, limits=limits)) as limited:
        first = await extend(limited, succeeded, epochs=3)
        second = await extend(limited, succeeded, epochs=3)
        with pytest.raises(ApiError) as caught:
            await extend(limited, succeeded, epochs=3)
        assert caught.value.code == "model_store_full"
        reserved = f"have {sizes.measure() + 2000:,} bytes"
        assert reserved in caught.value.message
        for run in (first, second):
            await limited.cancel(run.path.name)
        await extend(limited, succeeded, epochs=3)


async def test_copy_is_reserved_until_it_is_complete(
    layout: StorageLayout, jobs: NotedJobs, queue: RunQueue, succeeded: RunFolder
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    await copy(queue, jobs, run)
    stored = ModelSizes(layout).measure()
    queue.close()
    limits = UsageLimits(max_model_store_bytes=stored)
    full = f"^models and checkpoints have {stored:,} bytes"
    with (
        closing(RunQueue(layout, jobs, limits=limits)) as limited,
        pytest.raises(ApiError, match=full),
    ):
        await extend(limited, succeeded, epochs=3)


async def test_accepted_extension_survives_a_crash_of_the_queue(
    layout: StorageLayout, jobs: NotedJobs, queue: RunQueue, succeeded: RunFolder
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    await queue.reconcile()
    queue.close()  # its task ends with it, with one file copied

    def kill() -> None:
        if run.checkpoints.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_state(succeeded, run, kill)
    later = NotedJobs()
    with closing(RunQueue(layout, later)) as queue:
        await queue.reconcile()
        assert later.tasks == [], "attempts that failed are not repeated at once"
        AttemptCounter(layout, lambda: 0.0).clear(Task("check_job", run.path.name))
        await copy(queue, later, run)
        await queue.reconcile()
        assert later.started == [run.path.name]
    assert [found.step for found in list_checkpoints(run.checkpoints)] == [NUM_STEPS]


async def test_extended_job_cannot_be_deleted_before_it_is_copied(
    queue: RunQueue, jobs: NotedJobs, succeeded: RunFolder
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    await queue.pause(run.path.name)
    with pytest.raises(ApiError, match=f"^job '{run.path.name}' extends job") as caught:
        await queue.delete(succeeded.path.name)
    assert (caught.value.status, caught.value.code) == (409, "in_use")
    await queue.resume(run.path.name)
    await copy(queue, jobs, run)
    shards = list(run.checkpoints.rglob("shard.pt"))
    await queue.delete(succeeded.path.name)
    assert not succeeded.path.exists()
    assert [shard.read_bytes() for shard in shards] == [b"x" * 1000]
    await queue.reconcile()
    assert jobs.started == [run.path.name]


async def test_cancelled_extension_does_not_protect_the_extended_job(
    queue: RunQueue, jobs: NotedJobs, succeeded: RunFolder
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    await queue.cancel(run.path.name)
    check_job(queue.layout, run.path.name)  # its task started before
    assert not run.has_data
    with pytest.raises(ApiError, match="before its checkpoints were copied, and cannot resume"):
        await queue.resume(run.path.name)
    await queue.delete(succeeded.path.name)
    assert not succeeded.path.exists()


async def test_copy_of_a_killed_task_is_removed_with_the_end_of_its_job(
    queue: RunQueue, succeeded: RunFolder
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    (run.checkpoints / "checkpoint_0000000004").mkdir(parents=True)
    (run.checkpoints / "checkpoint_0000000004" / "shard.pt").write_bytes(b"x")
    await queue.cancel(run.path.name)
    assert run.read_record().status == "cancelled"
    assert not run.ray.exists()


async def test_cancelled_copy_is_removed_by_its_task(queue: RunQueue, succeeded: RunFolder) -> None:
    run = await extend(queue, succeeded, epochs=3)

    def cancel() -> None:
        if any(run.checkpoints.rglob("shard.pt")):
            run.update_record(status="cancelled")
        if run.read_record().is_final:
            raise RuntimeError("the job has ended")

    with pytest.raises(RuntimeError, match="has ended"):
        copy_state(succeeded, run, cancel)
    assert not run.ray.exists()


async def test_copy_by_an_earlier_task_costs_no_attempt(
    queue: RunQueue, jobs: NotedJobs, succeeded: RunFolder
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    with run.lock(COPY_LOCK, 0.0):
        for _ in range(MAX_ATTEMPTS + 1):
            await queue.reconcile()
            waiting_for = run.read_record().waiting_for or ""
            assert waiting_for.endswith("still being copied, by a task that was started before")
    assert jobs.tasks == []
    await copy(queue, jobs, run)
    assert run.read_record().status == "queued"


async def test_checkpoint_of_a_newer_release_is_not_skipped(
    queue: RunQueue, succeeded: RunFolder
) -> None:
    add_checkpoint(succeeded, 2)
    manifest = succeeded.checkpoints / "checkpoint_0000000004" / "manifest-00000.json"
    durable.write_json(manifest, {**durable.read_json(manifest), "format_version": "9.0"})
    with pytest.raises(ApiError, match="'checkpoint_0000000004' needs a newer version") as caught:
        await extend(queue, succeeded, epochs=5)
    assert (caught.value.status, caught.value.code) == (409, "checkpoints_newer")
    assert "Start the newer release again" in caught.value.message


@pytest.mark.parametrize("content", ["{", None])
async def test_event_warns_of_a_damaged_newest_checkpoint(
    queue: RunQueue, jobs: NotedJobs, succeeded: RunFolder, content: str | None
) -> None:
    add_checkpoint(succeeded, 2)
    manifest = succeeded.checkpoints / "checkpoint_0000000004" / "manifest-00000.json"
    manifest.unlink() if content is None else manifest.write_text(content)
    run = await extend(queue, succeeded, epochs=5)
    warnings = [event["message"] for event in run.events.read() if event["level"] == "warn"]
    assert len(warnings) == 1
    assert "'s checkpoint_0000000004 cannot be used" in warnings[0]
    assert "continues after step 2 instead" in warnings[0]
    await copy(queue, jobs, run)
    assert [found.step for found in list_checkpoints(run.checkpoints)] == [2]


async def test_damaged_earlier_checkpoint_causes_no_warning(
    queue: RunQueue, succeeded: RunFolder
) -> None:
    (add_checkpoint(succeeded, 2) / "manifest-00000.json").write_text("{")
    run = await extend(queue, succeeded, epochs=5)
    assert [event["level"] for event in run.events.read()] == ["info"]


async def test_unreadable_extension_protects_the_extended_job(
    queue: RunQueue, succeeded: RunFolder
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    record = json.loads(run.record_file.read_text())
    run.record_file.write_text(json.dumps({**record, "format_version": "9.0"}))
    with pytest.raises(ApiError, match="has not copied its checkpoints yet"):
        await queue.delete(succeeded.path.name)


@pytest.mark.parametrize("gone", ["ray", "run.json"])
async def test_state_that_is_gone_ends_the_extension(
    queue: RunQueue, jobs: NotedJobs, succeeded: RunFolder, gone: str
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    path = succeeded.path / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    await copy(queue, jobs, run)
    job = describe_job(run)
    assert job["status"] == "failed"
    assert job["error"] is not None
    assert job["error"]["code"] == "checkpoints_gone"
    assert succeeded.path.name in job["error"]["message"]


async def test_copy_is_repeated_when_the_disk_has_room_again(
    queue: RunQueue, jobs: NotedJobs, succeeded: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    await queue.reconcile()
    with monkeypatch.context() as patch:
        patch.setattr("apps.fine_tuning.validation.row_validation.copy_state", fill_disk)
        with pytest.raises(OSError, match="No space left"):
            check_job(queue.layout, run.path.name)
    jobs.running.clear()
    await queue.reconcile()
    assert "will be copied again" in (run.read_record().waiting_for or "")
    check_job(queue.layout, run.path.name)
    await queue.reconcile()
    assert run.read_record().status == "queued"


async def test_state_that_cannot_be_read_for_a_moment_is_read_again(
    queue: RunQueue, jobs: NotedJobs, succeeded: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await extend(queue, succeeded, epochs=3)

    def fail_for_source(layout: StorageLayout, run_id: str) -> RunFolder:
        if run_id == succeeded.path.name:
            raise ApiError(500, f"job {run_id!r} cannot be read: Input/output error")
        return find_run(layout, run_id)

    with monkeypatch.context() as patch:
        patch.setattr("apps.fine_tuning.validation.row_validation.find_run", fail_for_source)
        with pytest.raises(ApiError, match="cannot be read"):
            check_job(queue.layout, run.path.name)
    await copy(queue, jobs, run)
    assert run.read_record().status == "queued"


async def test_extension_is_extended_and_cloned(
    queue: RunQueue, jobs: NotedJobs, client: AppClient, succeeded: RunFolder
) -> None:
    run = await extend(queue, succeeded, epochs=3)
    await copy(queue, jobs, run)
    for step in (5, 6):
        run.metrics.add({**FIGURES, "step": step})
    add_checkpoint(run, 6)
    run.update_record(status="succeeded", model_id="second", finished_at=9)
    again = (await extend(queue, run, epochs=4)).read_record()
    assert [(end.epochs, end.step) for end in again.extends] == [(2, 4), (3, 6)]
    assert again.extended_from == run.path.name
    cloned = await client.post(f"/v1/fine_tuning/jobs/{run.path.name}/clone")
    assert (cloned.json()["training"]["epochs"], cloned.json()["extended_from"]) == (3, None)
