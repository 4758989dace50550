"""Jobs with training functions of the operator's, in place of the built-in loop."""

import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from apps.errors import InvalidInputError
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.job_requests import parse_fine_tune
from apps.fine_tuning.job_responses import describe_job
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.run_endings import finish_unpublished
from apps.settings import ApplicationSettings
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs, create_run
from training.spec import TrainingSpec

pytestmark = pytest.mark.anyio

LOOP = "operators_loops:train_func"


@pytest.fixture
def loop_queue(layout: StorageLayout, jobs: NotedJobs) -> Iterator[RunQueue]:
    with closing(RunQueue(layout, jobs, allowed_loops=[LOOP, "operators_loops:other"])) as queue:
        yield queue


async def test_only_allowed_loops_can_be_named(
    loop_queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    expected = (
        "training.loop is 'os:abort', which is not allowed here; allowed_loops: "
        "'operators_loops:train_func', 'operators_loops:other'"
    )
    with pytest.raises(InvalidInputError, match=f"^{expected}$") as caught:
        await create_run(loop_queue, file_id, training={"loop": "os:abort"})
    assert (caught.value.param, caught.value.code) == ("training", "loop_not_allowed")
    with pytest.raises(InvalidInputError, match="expected 'package.module:function'"):
        await create_run(loop_queue, file_id, training={"loop": "os.abort()"})
    assert RunIndex(layout).scan().runs == []


async def test_no_loop_is_allowed_by_default(queue: RunQueue, file_id: str) -> None:
    assert ApplicationSettings().allowed_loops == ()
    with pytest.raises(InvalidInputError, match="allowed_loops: none is, until the operator sets"):
        await create_run(queue, file_id, training={"loop": LOOP})


def test_operator_names_loops_in_one_form() -> None:
    with pytest.raises(ValueError, match="expected 'package.module:function'"):
        ApplicationSettings(allowed_loops=("train_func",))


async def test_job_with_a_loop_gets_its_rows_and_imports_nothing(
    loop_queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    config = {"batch_size": 3}
    run = await create_run(loop_queue, file_id, training={"loop": LOOP, "loop_config": config})
    spec = run.read_spec()
    assert (spec.loop, spec.loop_config) == (LOOP, config)
    assert (run.data / "train.parquet").is_file()
    assert describe_job(run)["training"]["loop"] == LOOP
    await loop_queue.reconcile()
    assert jobs.started == [run.path.name]
    assert "operators_loops" not in sys.modules


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"loop": LOOP, "micro_batch_size": 2}}, "micro_batch_size is 2, which has "),
        (
            {"training": {"loop": LOOP}, "hyperparameters": {"batch_size": 4}},
            "micro_batch_size is 2, which has no effect on the loop",
        ),
        (
            {"training": {"loop": LOOP, "loop_config": {"base_model": "/etc"}}},
            "loop_config has 'base_model', which the loop receives from the setting of this name",
        ),
    ],
)
async def test_settings_without_effect_are_refused(
    loop_queue: RunQueue, file_id: str, change: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        await create_run(loop_queue, file_id, **change)


def test_loop_has_the_task_that_suits_its_model() -> None:
    request = parse_fine_tune({"model": "m", "training_file": "f", "training": {"loop": LOOP}})
    defaults = TrainingSpec(
        base_model="m", train_file="f", task="sequence_classification", micro_batch_size=2
    )
    spec = request.resolve_settings(defaults)
    assert (spec.task, spec.loop) == ("sequence_classification", LOOP)


async def test_preview_of_a_loop_is_refused(loop_queue: RunQueue, file_id: str) -> None:
    with pytest.raises(InvalidInputError, match="a loop gets the rows as they are"):
        await loop_queue.preview(file_id, "latest", 1, {"loop": LOOP})


async def test_queued_job_waits_if_its_loop_is_no_longer_allowed(
    loop_queue: RunQueue, layout: StorageLayout, jobs: NotedJobs, file_id: str
) -> None:
    run = await create_run(loop_queue, file_id, training={"loop": LOOP})
    loop_queue.close()
    with closing(RunQueue(layout, jobs)) as queue:
        await queue.reconcile()
    assert jobs.started == []
    assert describe_job(run)["waiting_for"] == f"its loop {LOOP!r} is no longer allowed"


async def test_job_shows_only_what_the_loop_has_reported(
    loop_queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    run = await create_run(loop_queue, file_id, training={"loop": LOOP})
    run.metrics.add({"step": 4, "elapsed_s": 2.5, "accuracy": 0.5})
    run.update_record(status="running", computing_since=1)
    job = describe_job(run)
    assert job["estimated_finish"] is None
    assert job["progress"] == {
        "step": 4,
        "num_steps": None,
        "epoch": None,
        "loss": None,
        "tokens_per_s": None,
        "elapsed_s": 2.5,
        "remaining_s": None,
    }
    finish_unpublished(layout, run)
    ended = describe_job(run)
    assert (ended["status"], ended["fine_tuned_model"]) == ("succeeded", None)
    assert ended["result_files"]
