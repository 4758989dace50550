"""The columns of a file: the guess, and the setting that the menus enter."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import gradio as gr
import pytest

from apps.client.client import ApiClient
from apps.ui.fine_tune.data.column_mapping import (
    PARTS,
    ColumnMapping,
    FileColumns,
    guess_columns,
    read_mapping,
    recall_columns,
)
from tests.apps.stub_api import StubApi, ask

TASK = "causal_lm"
GUESS = {"prompt": "question", "completion": "reply"}
SKIP = type(gr.skip())


@pytest.mark.parametrize(
    ("task", "columns", "guess"),
    [
        ("causal_lm", ["id", "question", "reply"], GUESS),
        (
            "causal_lm",
            ["User_Query", "Agent Response"],
            {"prompt": "User_Query", "completion": "Agent Response"},
        ),
        ("causal_lm", ["a", "b"], {"prompt": "a", "completion": "b"}),
        (
            "causal_lm",
            ["ticket_text", "our_reply", "prio", "agent"],
            {"prompt": "ticket_text", "completion": "our_reply"},
        ),
        ("causal_lm", ["a", "b", "c"], {}),
        ("causal_lm", ["dialog", "id", "source"], {"messages": "dialog"}),
        ("causal_lm", ["review", "stars", "day"], {"text": "review"}),
        (
            "preference",
            ["query", "good", "bad"],
            {"prompt": "query", "chosen": "good", "rejected": "bad"},
        ),
        (
            "sequence_classification",
            ["comment", "sentiment"],
            {"text": "comment", "label": "sentiment"},
        ),
        (
            "image_classification",
            ["picture", "category"],
            {"image": "picture", "label": "category"},
        ),
        ("sequence_classification", ["a", "b"], {}),
        ("unknown", ["a", "b"], {}),
        ("causal_lm", [], {}),
    ],
)
def test_guess_follows_names(task: str, columns: list[str], guess: dict[str, str]) -> None:
    assert guess_columns(task, columns) == guess


def test_parts_are_those_that_training_knows() -> None:
    from training.task import find_task

    for task, parts in PARTS.items():
        assert set(parts) <= set(find_task(task).column_names), task


@pytest.mark.parametrize("value", [None, "", "{", "[1]", 5, '"a"'])
def test_other_values_are_no_mapping(value: Any) -> None:
    assert read_mapping({"columns": value}) == {}


@pytest.fixture
def call(api: StubApi) -> Callable[[Callable[[ColumnMapping], Awaitable[Any]]], Any]:
    def call_handler(use: Callable[[ColumnMapping], Awaitable[Any]]) -> Any:
        async def run(client: ApiClient) -> Any:
            with gr.Blocks(analytics_enabled=False):
                mapping = ColumnMapping(client)
            return await use(mapping)

        return ask(api, run)

    return call_handler


@pytest.fixture
def odd_file(api: StubApi) -> str:
    file = {**api.files[0], "id": "file-odd", "status": "error", "error_code": "unknown_columns"}
    api.files.append(file)
    api.rows.rows["file-odd"] = [{"question": "Why?", "reply": "Because."}]
    api.rows.rows["file-handbook"] = [{"prompt": "Why?", "completion": "Because."}]
    return "file-odd"


async def fit(
    mapping: ColumnMapping,
    data: str,
    task: str,
    entered: dict[str, Any],
    fitted: str | None = None,
) -> tuple[Any, ...]:
    """Fit the menus to a file; `fitted` is the file that they were for."""
    found = await mapping.read_columns(data)
    return mapping.fit_columns(found, fitted, data, task, entered)


def test_unknown_columns_are_guessed_and_entered(call: Any, odd_file: str) -> None:
    entered, _, place, note, *menus = call(
        lambda mapping: fit(mapping, odd_file, TASK, {"epochs": 2})
    )
    assert entered == {"epochs": 2, "columns": GUESS}
    assert (place.visible, place.open) == (True, True)
    assert "guess" in note.value
    assert [menu.value for menu in menus[:2]] == ["question", "reply"]
    assert menus[0].label == "Question"


def test_columns_of_another_file_are_removed(call: Any, odd_file: str) -> None:
    entered = {"epochs": 2, "columns": GUESS}
    kept, fitted, place, *_ = call(lambda mapping: fit(mapping, "file-handbook", TASK, entered))
    assert (kept, fitted) == ({"epochs": 2}, "file-handbook")
    assert (place.visible, place.open) == (True, False)


def test_entered_columns_of_this_file_stay(call: Any, odd_file: str) -> None:
    entered = {"columns": '{"prompt": "reply", "completion": "question"}'}
    kept, _, _, _, *menus = call(lambda mapping: fit(mapping, odd_file, TASK, entered))
    assert isinstance(kept, SKIP)
    assert [menu.value for menu in menus[:2]] == ["reply", "question"]


def test_known_columns_are_not_read_again(call: Any, odd_file: str, api: StubApi) -> None:
    async def read(mapping: ColumnMapping) -> list[FileColumns]:
        first = await mapping.read_columns(odd_file)
        api.rows.rows[odd_file] = [{"other": "x"}]
        again = await mapping.read_columns(odd_file, first)
        other = await mapping.read_columns("file-handbook", first)
        return [first, again, other, await mapping.read_columns(None, first)]

    first, again, other, none = call(read)
    assert again is first
    assert (other.data, none.columns) == ("file-handbook", ())


def test_chosen_columns_are_entered(call: Any) -> None:
    async def choose(mapping: ColumnMapping) -> tuple[Any, ...]:
        return mapping.map_columns(TASK, {"epochs": 2}, "question", "reply", "", "", "")

    kept, *menus, choice = call(choose)
    assert kept == {"epochs": 2, "columns": GUESS}
    assert choice != call(choose)[-1]
    assert {type(menu) for menu in menus} == {SKIP}

    async def remove(mapping: ColumnMapping) -> tuple[Any, ...]:
        return mapping.map_columns(TASK, {"columns": GUESS}, "", "", "", "", "")

    assert call(remove)[0] == {}


@pytest.mark.parametrize(
    ("before", "chosen", "kept", "emptied"),
    [
        ({"text": "a"}, ("q", "", "", "a", ""), {"prompt": "q"}, [3]),
        (GUESS, ("question", "reply", "", "", "turns"), {"messages": "turns"}, [0, 1]),
        (GUESS, ("question", "reply", "who", "", ""), {**GUESS, "system": "who"}, []),
    ],
)
def test_last_choice_empties_menus_that_contradict_it(
    call: Any,
    before: dict[str, str],
    chosen: tuple[str, ...],
    kept: dict[str, str],
    emptied: list[int],
) -> None:
    async def choose(mapping: ColumnMapping) -> tuple[Any, ...]:
        return mapping.map_columns(TASK, {"columns": before}, *chosen)

    entered, *menus, _ = call(choose)
    assert entered == {"columns": kept}
    assert [place for place, menu in enumerate(menus) if menu == ""] == emptied


def test_columns_of_another_task_are_guessed_again(call: Any, odd_file: str, api: StubApi) -> None:
    api.rows.rows[odd_file] = [{"question": "Why?", "reply": "Because.", "topic": "reasons"}]
    other = "sequence_classification"
    kept, *_ = call(lambda mapping: fit(mapping, odd_file, other, {"columns": GUESS}))
    assert "columns" not in kept


def test_parts_without_a_menu_stay(call: Any) -> None:
    async def choose(mapping: ColumnMapping) -> tuple[Any, Any]:
        entered = {"columns": {"tools": "functions", "prompt": "a"}}
        return mapping.map_columns(TASK, entered, "question", "reply", "", "", "")

    assert call(choose)[0] == {"columns": {"tools": "functions", **GUESS}}


def test_entered_text_that_is_no_mapping_stays(call: Any, odd_file: str) -> None:
    entered = {"columns": "{'a'"}
    kept, *_ = call(lambda mapping: fit(mapping, "file-handbook", TASK, entered))
    assert isinstance(kept, SKIP)


def test_file_that_cannot_be_read_has_no_menus(call: Any) -> None:
    kept, _, place, *_ = call(lambda mapping: fit(mapping, "file-gone", TASK, {"columns": GUESS}))
    assert isinstance(kept, SKIP)
    assert not place.visible


def test_columns_of_a_file_that_shares_some_names_are_removed(
    call: Any, odd_file: str, api: StubApi
) -> None:
    api.rows.rows["file-handbook"] = [{"question": "Why?", "answer": "Because."}]
    entered = {"columns": GUESS}
    kept, *_ = call(lambda mapping: fit(mapping, "file-handbook", TASK, entered, odd_file))
    assert kept == {}


def test_entered_name_that_the_file_lacks_stays_for_the_same_file(call: Any, odd_file: str) -> None:
    entered = {"columns": {"prompt": "question", "completion": "replies"}}
    kept, _, _, _, *menus = call(lambda mapping: fit(mapping, odd_file, TASK, entered, odd_file))
    assert isinstance(kept, SKIP)
    assert [menu.value for menu in menus[:2]] == ["question", ""]


def test_nothing_changes_when_another_file_was_chosen_meanwhile(call: Any, odd_file: str) -> None:
    async def choose(mapping: ColumnMapping) -> tuple[Any, ...]:
        found = await mapping.read_columns(odd_file)
        return mapping.fit_columns(found, None, "file-handbook", TASK, {"columns": GUESS})

    assert all(isinstance(update, SKIP) for update in call(choose))


def remember(data: str, mapping: dict[str, Any], task: str = "causal_lm") -> str:
    """Return what the browser keeps: the file, the task, and the value of each menu."""
    return json.dumps([data, task, *(mapping.get(part, "") for part in PARTS[task])])


@pytest.mark.parametrize(
    ("remembered", "mapping"),
    [
        (remember("file-1", GUESS), GUESS),
        (remember("file-2", GUESS), {}),
        (remember("file-1", {"prompt": "gone", "completion": ["reply"]}), {}),
        ('{"file-1": "question"}', {}),
        (remember("file-1", {"prompt": "question", "chosen": "reply"}, "preference"), {}),
        ('["file-1", "question", "reply"]', {}),
        ('["file-1", ["causal_lm"], "question", "reply"]', {}),
        ("[" * 100_000, {}),
        ("[]", {}),
        ("no JSON", {}),
        (None, {}),
    ],
)
def test_columns_chosen_last_are_recalled_for_their_file(
    remembered: str | None, mapping: dict[str, str]
) -> None:
    found = FileColumns("file-1", ("question", "reply"), is_unknown=True)
    recalled = recall_columns(remembered, "file-1")
    assert (recalled.select(found, "causal_lm") if recalled else {}) == mapping


def test_columns_of_another_task_are_recalled_with_it() -> None:
    chosen = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    recalled = recall_columns(remember("file-1", chosen, "preference"), "file-1")
    assert recalled is not None
    assert recalled.task == "preference"
    assert recalled.select(FileColumns("file-1", ("q", "good")), "preference") == {
        "prompt": "q",
        "chosen": "good",
    }
