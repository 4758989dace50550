"""The task on the page "Fine-tune": model and data decide it, and the settings follow it."""

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from apps.client.client import ApiClient
from apps.ui.fine_tune.data.column_mapping import FileColumns
from apps.ui.fine_tune.fine_tune_page import FineTunePage
from apps.ui.fine_tune.setting_form import SettingForm, name_task
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
    _, menu, defaults, _ = call(lambda page: page.choose_settings("base", labelled_file, None))
    assert menu.value == CLASSIFICATION
    assert menu.choices == [("Generate text", "causal_lm"), ("Classify texts", CLASSIFICATION)]
    assert "problem_type" in defaults["training"]["task_settings"]
    _, menu, defaults, _ = call(
        lambda page: page.choose_settings("base", "file-handbook", defaults)
    )
    assert (menu.value, defaults["task"]) == ("causal_lm", "causal_lm")


def test_other_data_keep_settings_of_same_task(call: Any, api: StubApi, labelled_file: str) -> None:
    chats = {"model": "base", "task": "causal_lm", "tasks": ["causal_lm", CLASSIFICATION]}
    _, *kept, choice = call(lambda page: page.choose_settings("base", "file-handbook", chats))
    assert [type(one) for one in kept] == [type(gr.skip())] * 2
    assert isinstance(choice, str)  # the rows are others, so the preview is
    _, menu, defaults, _ = call(lambda page: page.choose_settings("base", labelled_file, chats))
    assert (menu.value, defaults["task"]) == (CLASSIFICATION, CLASSIFICATION)


def test_preview_and_job_are_of_chosen_task(call: Any, api: StubApi) -> None:
    _, defaults, _ = call(lambda page: page.choose_task("base", CLASSIFICATION))
    call(lambda page: page.show_preview("base", "file-handbook", {"max_length": 64}, defaults))
    assert api.previews[-1] == {"max_length": 64, "task": CLASSIFICATION}
    assert name_task(defaults) == {"task": CLASSIFICATION}


def test_task_by_default_is_not_sent(call: Any, api: StubApi) -> None:
    _, defaults, _ = call(lambda page: page.choose_task("base", "causal_lm"))
    call(lambda page: page.show_preview("base", "file-handbook", {}, defaults))
    assert api.previews[-1] == {}


def test_unknown_file_is_reported(call: Any) -> None:
    notice, *_ = call(lambda page: page.choose_settings("base", "file-gone", None))
    assert "There is no file" in notice.value


def test_settings_of_model_stay_if_other_data_cannot_be_read(call: Any) -> None:
    chats = {"model": "base", "task": "causal_lm", "tasks": ["causal_lm", CLASSIFICATION]}
    notice, *kept, _ = call(lambda page: page.choose_settings("base", "file-gone", chats))
    assert "There is no file" in notice.value
    assert [type(one) for one in kept] == [type(gr.skip())] * 2
    other = {**chats, "model": "other"}
    _, _, defaults, _ = call(lambda page: page.choose_settings("base", "file-gone", other))
    assert defaults is None


async def read_form(page: FineTunePage, task: str, preset: str = "balanced") -> SettingForm:
    _, defaults, _ = await page.choose_task("base", task)
    return SettingForm(defaults, preset, "file-handbook", "token")


def send(form: SettingForm, **changes: Any) -> str:
    """Return what the browser sends of a form in which some fields were changed."""
    return json.dumps({"form": form.name, "fields": {**form.shown, **changes}})


def test_start_is_refused_while_settings_of_other_choice_are_shown(call: Any, api: StubApi) -> None:
    async def press(
        page: FineTunePage,
        model: str = "base",
        task: str = CLASSIFICATION,
        data: str = "file-handbook",
        columns: Any = None,
        sent: str | None = None,
    ) -> str:
        form = await read_form(page, CLASSIFICATION)
        sent = send(form) if sent is None else sent
        run, _ = await page.settings.start(sent, form, columns, {}, model, task, data, "")
        return run

    for chosen in (
        {"model": "other"},
        {"task": "causal_lm"},
        {"data": "file-other"},
        {"columns": {"prompt": "q"}},
        {"sent": '{"form": "other"}'},
    ):
        with pytest.raises(gr.Error, match="settings of the chosen model and task are loading"):
            call(lambda page, chosen=chosen: press(page, **chosen))
    assert not api.jobs
    assert call(press) in api.jobs


def test_preset_is_sent_with_what_was_entered(call: Any, api: StubApi) -> None:
    async def press(page: FineTunePage) -> tuple[Any, Any]:
        form = await read_form(page, "causal_lm", "adapter")
        sent = send(form, epochs=7)
        chosen = ("base", "causal_lm", "file-handbook", "")
        await page.settings.start(sent, form, None, {}, *chosen)
        return page.settings.keep(sent, form, None, {"task_settings.labels": ["a"]})

    kept, columns = call(press)
    assert (kept, columns) == ({"task_settings.labels": ["a"], "epochs": 7}, None)
    changes = {"epochs": 7, "learning_rate": 0.01, "adapter": {"rank": 4}}
    assert api.bodies[-1]["training"] == changes


def test_form_is_shown_again_only_for_another_one(call: Any) -> None:
    columns = {"prompt": "q"}
    found = FileColumns("file-other")

    async def show(page: FineTunePage) -> list[tuple[bool, Any, Any]]:
        form = await read_form(page, "causal_lm")
        other = (await read_form(page, CLASSIFICATION)).defaults
        cases: list[tuple[Any, Any, Any, str]] = [
            (None, form.defaults, {}, "balanced"),
            (None, form.defaults, {}, "adapter"),
            (None, other, {}, "balanced"),
            (None, form.defaults, {"columns": columns}, "balanced"),
            (columns, form.defaults, {"columns": columns}, "balanced"),
        ]
        sent = send(form, epochs=5)
        shown = [page.settings.show_again(sent, form, *case, found) for case in cases]
        return [(isinstance(one[3], str), one[0], one[4].data) for one in shown]

    typed, mapped = {"epochs": 5}, {"epochs": 5, "columns": columns}
    assert call(show) == [
        (False, typed, "file-other"),
        (True, typed, "file-other"),
        (True, typed, "file-other"),
        (True, mapped, "file-other"),
        (True, typed, "file-other"),  # the field is empty
    ]


def test_chosen_columns_stay_while_the_form_does_not_show_them(call: Any) -> None:
    async def keep(page: FineTunePage) -> list[Any]:
        form = await read_form(page, "causal_lm")
        sent, chosen = send(form, epochs=5), {"columns": {"prompt": "q"}}
        other = page.settings.keep(send(form).replace("token", "other"), form, None, chosen)
        return [page.settings.keep(sent, form, None, chosen), other]

    (kept, shown), (unchanged, _) = call(keep)
    assert kept == {"epochs": 5, "columns": {"prompt": "q"}}
    assert isinstance(shown, type(gr.skip()))
    assert unchanged == {"columns": {"prompt": "q"}}


def test_form_and_presets_are_hidden_without_settings(call: Any) -> None:
    async def show(page: FineTunePage) -> tuple[Any, ...]:
        return page.settings.show(None, {}, None)

    menu, *parts = call(show)
    assert (menu.visible, parts) == (False, ["", "", None, None])


def test_check_and_start_return_the_problems_of_fields(call: Any, api: StubApi) -> None:
    async def press(page: FineTunePage) -> list[Any]:
        form = await read_form(page, "causal_lm")
        chosen: tuple[Any, ...] = (form, None, {}, "base", "causal_lm", "file-handbook", "")
        settings = page.settings
        checked, _ = await settings.check_settings(send(form, learning_rate=0), *chosen)
        run, started = await settings.start(send(form, learning_rate=0), *chosen)
        assert (run, started) == ("", checked)
        other, _ = await settings.check_settings(send(form), form, None, {}, "other", *chosen[4:])
        unset, _ = await settings.check_settings(
            send(form), form, None, {}, "base", "causal_lm", None, ""
        )
        absent, _ = await settings.check_settings("", None, *chosen[1:])
        empty, _ = await settings.check_settings(send(form, epochs=None), *chosen)
        return [json.loads(text) for text in (checked, other, unset, absent, empty)]

    message = "Learning rate is 0: it should be greater than 0."
    refused, loading, unset, absent, empty = call(press)
    problem = {"id": "setting-learning-rate", "message": message}
    flags = {"isTemporary": False, "isEarly": False}
    assert refused == {"problems": [problem], "reason": message, **flags}
    assert "loading" in loading["reason"]
    assert loading["isEarly"]
    assert unset["reason"] == "Choose a model and data first."
    assert absent["reason"].startswith("There are no settings for this choice")
    assert [problem["id"] for problem in empty["problems"]] == ["setting-epochs"]
    assert not api.jobs


def test_valid_settings_have_an_estimate(call: Any, api: StubApi) -> None:
    async def check(page: FineTunePage) -> Any:
        form = await read_form(page, CLASSIFICATION)
        chosen: tuple[Any, ...] = (form, None, {}, "base", CLASSIFICATION, "file-handbook", "me")
        return await page.settings.check_settings(send(form, epochs=2), *chosen)

    verdict, estimate = call(check)
    assert json.loads(verdict)["reason"] == ""
    assert "80 steps" in estimate
    training = {"epochs": 2, "task": CLASSIFICATION}
    assert api.estimates[-1]["suffix"] == "me"
    assert api.estimates[-1]["training"] == training


def test_preview_has_the_settings_of_rows(call: Any, api: StubApi) -> None:
    async def preview(page: FineTunePage) -> list[Any]:
        form = await read_form(page, "causal_lm")
        sent = send(form, max_length="64", epochs=9)
        chosen = ("base", "file-handbook")
        return [
            await page.settings.update_preview(sent, form, *chosen),
            await page.settings.update_preview("", form, *chosen),
        ]

    shown, kept = call(preview)
    assert "ts-learned" in shown
    assert isinstance(kept, type(gr.skip()))
    assert api.previews[-1] == {"max_length": 64}


def test_settings_are_written_and_filled_in(call: Any) -> None:
    async def use(page: FineTunePage) -> tuple[list[str], tuple[Any, ...], tuple[Any, ...]]:
        form = await read_form(page, "causal_lm")
        chosen = ("yaml", "base", "file-handbook", "me")
        settings = page.settings
        texts = [
            await settings.write_settings(send(form, epochs=5), "", form, *chosen),
            await settings.write_settings(send(form, epochs=None), "", form, *chosen),
            await settings.write_settings("", "", form, *chosen),
            await settings.write_settings("", "", form, "yaml", None, None, ""),
            await settings.write_settings(send(form), "", form, "yaml", "base", "file-gone", ""),
        ]
        good = settings.import_settings("epochs: 4", form)
        bad = settings.import_settings("rate: 4", form)
        return texts, good, bad

    texts, (note, entered, *shown), (fault, *others) = call(use)
    beginnings = ("# python -m", "Epochs is empty", "The settings of", "Choose a", "There is no")
    assert "epochs: 5" in texts[0]
    for text, beginning in zip(texts, beginnings, strict=True):
        assert text.startswith(beginning)
    assert (note.visible, entered) == (False, {"epochs": 4})
    assert 'value="4"' in shown[2]
    assert "rate" in fault.value
    assert {type(one) for one in others} == {type(gr.skip())}
    assert len(others) == len(shown) + 1


def test_fields_are_built_by_groups_of_the_schema(call: Any) -> None:
    async def render(page: FineTunePage) -> str:
        return (await read_form(page, "causal_lm")).render({})

    keys = re.findall('data-key="([^"]+)"', call(render))
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
    assert 'id="setting-epochs"' in first[9]
    assert type(first[-1]) is type(gr.skip())
    assert len(api.previews) == 1
    assert "ts-learned" in second[-1]
    assert {type(one) for one in second[:-1]} == {type(gr.skip())}
