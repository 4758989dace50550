"""Jobs of preference tuning: the method 'dpo', other losses, faults of rows, and previews."""

import json
from typing import Any

import pytest
from openai.types.fine_tuning.fine_tuning_job import Method

from apps.errors import InvalidInputError
from apps.file_store import FileStore
from apps.fine_tuning.default_settings import describe_defaults
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.job_responses import describe_job
from apps.fine_tuning.queue import RunQueue
from apps.ui.fine_tune.setting_form import SettingForm
from serving.errors import InvalidRequestError
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.apps.conftest import create_run

pytestmark = pytest.mark.anyio


@pytest.fixture
def pairs_id(layout: StorageLayout) -> str:
    """The id of a file of preferences in OpenAI's format."""
    return add_rows(layout, "file-pairs", *[make_pair(f"Number {n}") for n in range(4)])


def add_rows(layout: StorageLayout, file_id: str, *rows: Any) -> str:
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    FileStore(layout).add(file_id, content, "pairs.jsonl")
    return file_id


def make_pair(question: str, good: str = "Gladly.", bad: str = "No.") -> dict[str, Any]:
    return {
        "input": {"messages": [{"role": "user", "content": question}]},
        "preferred_output": [{"role": "assistant", "content": good}],
        "non_preferred_output": [{"role": "assistant", "content": bad}],
    }


async def test_method_dpo_trains_preferences(queue: RunQueue, pairs_id: str) -> None:
    asked = {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 0.5, "beta": 0.3}
    method = {"type": "dpo", "dpo": {"hyperparameters": asked}}
    run = await create_run(queue, pairs_id, method=method)
    spec = run.read_spec()
    assert (spec.task, spec.task_settings) == ("preference", {"beta": 0.3})
    assert (spec.epochs, spec.micro_batch_size, spec.learning_rate) == (2, 2, 5e-5)
    assert run.read_data_summary()["format"] == "openai_preference"
    shown = describe_job(run)["method"]
    assert shown == {"type": "dpo", "dpo": {"hyperparameters": asked}}
    assert Method.model_validate(shown).dpo is not None


async def test_other_loss_of_preferences_is_a_setting(queue: RunQueue, pairs_id: str) -> None:
    training = {"task_settings": {"loss": "ipo", "beta": 0.7}}
    run = await create_run(queue, pairs_id, method={"type": "dpo"}, training=training)
    assert run.read_spec().task_settings == {"loss": "ipo", "beta": 0.7}
    method: Any = describe_job(run)["method"]
    assert method["dpo"]["hyperparameters"]["beta"] == 0.7
    run = await create_run(queue, pairs_id, training={"task": "preference"})
    method = describe_job(run)["method"]
    assert (method["type"], method["dpo"]["hyperparameters"]["beta"]) == ("dpo", 0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"method": {"type": "dpo"}, "training": {"task": "causal_lm"}},
            "method.type is 'dpo', and training.task is 'causal_lm'",
        ),
        (
            {"method": {"type": "supervised"}, "training": {"task": "preference"}},
            "method.type is 'supervised', and training.task is 'preference'",
        ),
        (
            {"method": {"type": "dpo", "supervised": {}}},
            "'method': type is 'dpo', and 'supervised' has settings",
        ),
        (
            {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0}}}},
            "beta': expected 'auto' or a number greater than 0.0, found 0",
        ),
        (
            {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 500}}}},
            "beta': expected 'auto' or a number of at most 100.0, found 500",
        ),
        (
            {"method": {"type": "dpo"}, "training": {"task_settings": {"loss": "ppo"}}},
            "task_settings of task 'preference': loss is \"ppo\"",
        ),
        ({"method": {"type": "reinforcement"}}, "'method.type': "),
        (
            {"method": {"type": "dpo"}, "training_file": "file-rows"},
            "the first row has the keys .*; rows with one answer and no verdict are for task",
        ),
        ({}, "which marks good and bad answers"),
    ],
)
async def test_invalid_preference_job_is_refused(
    queue: RunQueue, layout: StorageLayout, file_id: str, pairs_id: str, change: Any, message: str
) -> None:
    with pytest.raises((InvalidRequestError, InvalidInputError), match=message):
        await queue.create({"model": "latest", "training_file": pairs_id, **change})
    assert RunIndex(layout).scan().runs == []


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (make_pair("a", "same", "same"), "are equal, expected two different answers"),
        ({**make_pair("a"), "non_preferred_output": None}, "'non_preferred_output' is missing"),
        ({"prompt": "a", "completion": "b"}, "'preferred_output' is missing"),
    ],
)
async def test_faulty_preference_is_named_by_its_line(
    queue: RunQueue, layout: StorageLayout, row: Any, reason: str
) -> None:
    add_rows(layout, "file-faulty", make_pair("b"), row)
    body = {"model": "latest", "training_file": "file-faulty", "method": {"type": "dpo"}}
    with pytest.raises(InvalidInputError, match=rf"pairs.jsonl: .*{reason}.*\(line 2\)") as caught:
        await queue.create(body)
    assert (caught.value.param, caught.value.code) == ("training_file", "invalid_training_file")


async def test_preview_shows_both_answers(queue: RunQueue, pairs_id: str) -> None:
    shown = await queue.preview(pairs_id, "latest", 1, {})
    learned = [
        (
            row["line"],
            row["is_preferred"],
            "".join(t["text"] for t in row["tokens"] if t["learned"]),
        )
        for row in shown["rows"]
    ]
    assert learned == [(1, True, "Gladly.<|im_end|>"), (1, False, "No.<|im_end|>")]
    assert (shown["task"], shown["num_rows"]) == ("preference", 4)
    with pytest.raises(InvalidInputError, match="less than twice max_length") as caught:
        await queue.preview(pairs_id, "latest", 1, {"max_length": 700, "micro_batch_tokens": 1024})
    assert caught.value.param == "training"


async def test_settings_of_the_page_preview_rows_with_verdicts(
    queue: RunQueue, layout: StorageLayout
) -> None:
    rows = [{"prompt": f"Is {n} even?", "completion": "Yes.", "label": n == 2} for n in (1, 2)]
    add_rows(layout, "file-verdicts", *rows)
    defaults = describe_defaults(ModelStore(layout), "latest", "preference")
    assert "preference" in defaults["tasks"]
    training = SettingForm(defaults).plan_rows({})
    with pytest.raises(InvalidInputError, match="set task_settings.loss to 'kto'"):
        await queue.preview("file-verdicts", "latest", 2, training)
    training = SettingForm(defaults).plan_rows({"task_settings.loss": "kto"})
    shown = await queue.preview("file-verdicts", "latest", 2, training)
    assert [row["is_preferred"] for row in shown["rows"]] == [False, True]
    run = await create_run(queue, "file-verdicts", training=training)
    assert run.read_spec().task_settings["loss"] == "kto"
