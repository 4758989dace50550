"""The task on the page "Fine-tune": model and data decide it, and the settings follow it."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from apps.client.client import ApiClient
from apps.client.resources import Defaults
from apps.ui.fine_tune.fine_tune_page import FineTunePage
from apps.ui.fine_tune.training_settings import (
    Entered,
    JobActions,
    TrainingSettings,
    name_task,
)
from apps.ui.protection.uploads import UploadFolder
from tests.apps.stub_api import StubApi, ask

CLASSIFICATION = "sequence_classification"


@pytest.fixture
def labelled_file(api: StubApi) -> str:
    file = {**api.files[0], "id": "file-labels", "check": {"task": CLASSIFICATION}}
    api.files.append(file)
    return str(file["id"])


@pytest.fixture
def call(api: StubApi, tmp_path: Path) -> Callable[[Callable[[FineTunePage], Awaitable[Any]]], Any]:
    """Call an event handler of a new page."""

    def call_handler(use: Callable[[FineTunePage], Awaitable[Any]]) -> Any:
        async def run(client: ApiClient) -> Any:
            with gr.Blocks(analytics_enabled=False):
                page = FineTunePage(client, UploadFolder(tmp_path))
            return await use(page)

        return ask(api, run)

    return call_handler


def test_file_of_labelled_rows_selects_classification(call: Any, labelled_file: str) -> None:
    _, menu, defaults = call(lambda page: page.choose_settings("base", labelled_file, None))
    assert menu.value == CLASSIFICATION
    assert menu.choices == [("Generate text", "causal_lm"), ("Classify texts", CLASSIFICATION)]
    assert "problem_type" in defaults["training"]["task_settings"]
    _, menu, defaults = call(lambda page: page.choose_settings("base", "file-handbook", defaults))
    assert (menu.value, defaults["task"]) == ("causal_lm", "causal_lm")


def test_other_data_keep_settings_of_same_task(call: Any, api: StubApi, labelled_file: str) -> None:
    chats = {"model": "base", "task": "causal_lm", "tasks": ["causal_lm", CLASSIFICATION]}
    kept = call(lambda page: page.choose_settings("base", "file-handbook", chats))
    assert [type(one) for one in kept[1:]] == [type(gr.skip())] * 2
    _, menu, defaults = call(lambda page: page.choose_settings("base", labelled_file, chats))
    assert (menu.value, defaults["task"]) == (CLASSIFICATION, CLASSIFICATION)


def test_preview_and_job_are_of_chosen_task(call: Any, api: StubApi) -> None:
    _, defaults = call(lambda page: page.choose_task("base", CLASSIFICATION))
    call(lambda page: page.show_preview("base", "file-handbook", {"max_length": 64}, defaults))
    assert api.previews[-1] == {"max_length": 64, "task": CLASSIFICATION}
    assert name_task(defaults) == {"task": CLASSIFICATION}


def test_task_by_default_is_not_sent(call: Any, api: StubApi) -> None:
    _, defaults = call(lambda page: page.choose_task("base", "causal_lm"))
    call(lambda page: page.show_preview("base", "file-handbook", {}, defaults))
    assert api.previews[-1] == {}


def test_unknown_file_is_reported(call: Any) -> None:
    notice, *_ = call(lambda page: page.choose_settings("base", "file-gone", None))
    assert "There is no file" in notice.value


def test_settings_of_model_stay_if_other_data_cannot_be_read(call: Any) -> None:
    chats = {"model": "base", "task": "causal_lm", "tasks": ["causal_lm", CLASSIFICATION]}
    notice, *kept = call(lambda page: page.choose_settings("base", "file-gone", chats))
    assert "There is no file" in notice.value
    assert [type(one) for one in kept] == [type(gr.skip())] * 2
    other = {**chats, "model": "other"}
    _, _, defaults = call(lambda page: page.choose_settings("base", "file-gone", other))
    assert defaults is None


def build_settings(
    page: FineTunePage, defaults: Any, entered: Entered, preset: str = "", start: Any = None
) -> TrainingSettings:
    with gr.Blocks(analytics_enabled=False):
        return TrainingSettings(
            Defaults.model_validate(defaults),
            entered,
            preset,
            is_more_open=False,
            actions=JobActions(
                start or page.start, page.estimate, page.name_file, page.show_preview
            ),
        )


def test_start_is_refused_while_settings_of_other_choice_are_shown(call: Any, api: StubApi) -> None:
    async def press(page: FineTunePage, model: str, task: str) -> str:
        _, defaults = await page.choose_task("base", CLASSIFICATION)
        settings = build_settings(page, defaults, {})
        shown = [field.value for field in settings.fields.values()]
        run, _ = await settings.start(model, task, "file-handbook", "", *shown)
        return run

    for model, task, named in (
        ("other", CLASSIFICATION, "model base"),
        ("base", "causal_lm", f"task {CLASSIFICATION}"),
    ):
        with pytest.raises(gr.Error, match=f"^'?These are the settings of the {named}"):
            call(lambda page, model=model, task=task: press(page, model, task))
    assert not api.jobs
    assert call(lambda page: press(page, "base", CLASSIFICATION)) in api.jobs


def test_preset_fills_fields_and_is_sent_with_what_was_entered(call: Any) -> None:
    sent: list[Any] = []

    async def record(*arguments: Any) -> str:
        sent.append(arguments)
        return "a job"

    async def press(page: FineTunePage) -> Entered:
        _, defaults = await page.choose_task("base", "causal_lm")
        settings = build_settings(page, defaults, {"epochs": 7}, "adapter", record)
        shown = {key: field.value for key, field in settings.fields.items()}
        assert (shown["epochs"], shown["learning_rate"]) == (7, 0.01)
        await settings.start("base", "causal_lm", "file-handbook", "", *shown.values())
        return settings.keep({"epochs": 7}, "name", *shown.values())

    assert call(press) == {"epochs": 7, "suffix": "name"}
    changes = {"epochs": 7, "learning_rate": 0.01, "adapter": {"rank": 4}}
    assert sent == [("base", "file-handbook", "", changes)]


def test_unknown_preset_shows_defaults(call: Any) -> None:
    async def build(page: FineTunePage) -> tuple[Any, Any]:
        _, defaults = await page.choose_task("base", "causal_lm")
        settings = build_settings(page, {**defaults, "presets": {}}, {}, "adapter")
        return settings.preset, settings.fields["learning_rate"].value

    menu, rate = call(build)
    assert (menu.value, menu.visible, rate) == ("balanced", False, 0.001)


def test_check_and_start_return_the_problems_of_fields(call: Any, api: StubApi) -> None:
    async def press(page: FineTunePage) -> list[Any]:
        _, defaults = await page.choose_task("base", "causal_lm")
        settings = build_settings(page, defaults, {"learning_rate": 0})
        shown = [field.value for field in settings.fields.values()]
        chosen = ("base", "causal_lm", "file-handbook", "", *shown)
        checked, _ = await settings.check_settings(*chosen)
        run, started = await settings.start(*chosen)
        assert (run, started) == ("", checked)
        other, _ = await settings.check_settings("other", *chosen[1:])
        unset, _ = await settings.check_settings("base", "causal_lm", None, *chosen[3:])
        return [json.loads(text) for text in (checked, other, unset)]

    message = "Learning rate is 0: it should be greater than 0."
    refused, loading, unset = call(press)
    problem = {"id": "setting-learning-rate", "message": message}
    flags = {"isTemporary": False, "isEarly": False}
    assert refused == {"problems": [problem], "reason": message, **flags}
    assert "loading" in loading["reason"]
    assert unset["reason"] == "Choose a model and data first."
    assert not api.jobs


def test_valid_settings_have_an_estimate(call: Any, api: StubApi) -> None:
    async def check(page: FineTunePage) -> Any:
        _, defaults = await page.choose_task("base", CLASSIFICATION)
        settings = build_settings(page, defaults, {"epochs": 2})
        shown = [field.value for field in settings.fields.values()]
        return await settings.check_settings("base", CLASSIFICATION, "file-handbook", "me", *shown)

    verdict, estimate = call(check)
    assert json.loads(verdict)["reason"] == ""
    assert "80 steps" in estimate
    training = {"epochs": 2, "task": CLASSIFICATION}
    assert api.estimates[-1]["suffix"] == "me"
    assert api.estimates[-1]["training"] == training


def test_fields_are_built_by_groups_of_the_schema(call: Any) -> None:
    async def build(page: FineTunePage) -> TrainingSettings:
        _, defaults = await page.choose_task("base", "causal_lm")
        return build_settings(page, defaults, {})

    keys = list(call(build).fields)
    assert keys[:2] == ["epochs", "learning_rate"]
    assert keys[2:] == [
        *("max_length", "columns", "warmup_ratio", "adapter", "offload_optimizer", "precision"),
        "wall_clock_breakdown",
    ]


def test_menus_are_filled_before_the_preview_is_asked_for(call: Any, api: StubApi) -> None:
    async def open_page(page: FineTunePage) -> tuple[list[tuple[Any, ...]], int]:
        request = SimpleNamespace(query_params={})
        shown = page.open(None, None, request)  # type: ignore[arg-type]
        first = await anext(shown)
        num_before = len(api.previews)
        return [first, *[one async for one in shown]], num_before

    (first, second), num_before = call(open_page)
    assert num_before == 0
    assert (first[1].value, first[2].value) == ("base", "file-handbook")
    assert first[5]["model"] == "base"
    assert type(first[-1]) is type(gr.skip())
    assert len(api.previews) == 1
    assert "ts-learned" in second[-1]
    assert {type(one) for one in second[:-1]} == {type(gr.skip())}
