"""Extensions whose settings would end the training too early are refused."""

from contextlib import closing

import pytest

from apps.errors import InvalidInputError
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.queue import RunQueue
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs
from tests.apps.fine_tuning.conftest import FIGURES
from tests.apps.fine_tuning.extension.conftest import create_succeeded, extend

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("training", "body", "message", "param"),
    [
        (  # it would take no step
            {"max_steps": 4},
            {"max_steps": 400},
            "max_steps is 400, but epochs is 2, which takes 4 steps, and ENDED: set epochs to at "
            "least 200",
            "epochs",
        ),
        (  # fewer than asked
            {"max_steps": 4, "epochs": 3},
            {"max_steps": 9},
            "max_steps is 9, but epochs is 3, which takes 6 steps, and ENDED: set epochs to at "
            "least 5",
            "epochs",
        ),
        (
            {"max_steps": 4},
            {"max_steps": 400, "epochs": 2},
            "max_steps is 400, but epochs is 2, which takes 4 steps, and ENDED: set epochs to at "
            "least 200",
            "epochs",
        ),
        (
            {"max_steps": 6},
            {"epochs": 5},
            "epochs is 5, which takes 10 steps, but max_steps is 6 and ENDED: set max_steps to at "
            "least 10",
            "max_steps",
        ),
    ],
)
async def test_setting_that_ends_the_training_too_early_is_named(
    queue: RunQueue,
    file_id: str,
    training: dict[str, int],
    body: dict[str, int],
    message: str,
    param: str,
) -> None:
    source = await create_succeeded(queue, file_id, **training)
    with pytest.raises(InvalidInputError) as caught:
        await extend(queue, source, **body)
    ended = f"job {source.path.name!r} ended at step 4"
    assert (caught.value.message, caught.value.param) == (message.replace("ENDED", ended), param)
    assert len(RunIndex(queue.layout).scan().runs) == 1


async def test_needed_length_is_accepted(queue: RunQueue, file_id: str) -> None:
    source = await create_succeeded(queue, file_id, max_steps=6)
    spec = (await extend(queue, source, epochs=5, max_steps=10)).read_spec()
    assert (spec.epochs, spec.max_steps) == (5, 10)
    spec = (await extend(queue, source, epochs=5, max_steps=6)).read_spec()
    assert (spec.epochs, spec.max_steps) == (5, 6), "both were asked for"
    other = await create_succeeded(queue, file_id, max_steps=4, epochs=3)
    spec = (await extend(queue, other, max_steps=6)).read_spec()
    assert (spec.epochs, spec.max_steps) == (3, 6)


async def test_steps_of_an_own_loop_are_unknown(
    layout: StorageLayout, jobs: NotedJobs, queue: RunQueue, file_id: str
) -> None:
    source = await create_succeeded(queue, file_id)
    changes = {"loop": "package.module:train", "micro_batch_size": None}
    source.write_spec(source.read_spec().model_copy(update=changes))
    source.metrics.add({**FIGURES, "step": 40})  # more than three epochs of ours
    queue.close()
    with closing(RunQueue(layout, jobs, allowed_loops=["package.module:train"])) as allowing:
        assert (await extend(allowing, source, epochs=3)).read_spec().epochs == 3
    source.write_spec(source.read_spec().model_copy(update={"loop": None}))
    with (
        closing(RunQueue(layout, jobs)) as other,
        pytest.raises(InvalidInputError, match="ended at step 40: set epochs to at least"),
    ):
        await extend(other, source, epochs=3)
