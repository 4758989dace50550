"""The columns of a file: the guess, and the setting that the menus enter."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from apps.client.resources import File
from apps.ui.fine_tune.data.column_mapping import (
    PARTS,
    ColumnMenus,
    fit_columns,
    guess_columns,
    map_columns,
    read_columns,
    read_mapping,
    recall_columns,
)
from apps.ui.fine_tune.data.file_menu import list_files
from tests.apps.stub_api import StubApi, ask

TASK = "causal_lm"
GUESS = {"prompt": "question", "completion": "reply"}


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
def odd_file(api: StubApi) -> str:
    file = {**api.files[0], "id": "file-odd", "status": "error", "error_code": "unknown_columns"}
    api.files.append(file)
    api.rows.rows["file-odd"] = [{"question": "Why?", "reply": "Because."}]
    api.rows.rows["file-handbook"] = [{"prompt": "Why?", "completion": "Because."}]
    return "file-odd"


@pytest.fixture
def fit(api: StubApi) -> Callable[..., tuple[Mapping[str, Any], ColumnMenus]]:
    """Fit the menus to a file; `fitted` is the file that they were for."""

    def call(
        data: str, entered: Mapping[str, Any], task: str = TASK, fitted: str | None = None
    ) -> tuple[Mapping[str, Any], ColumnMenus]:
        listed = [file for file in ask(api, list_files) if file.id == data]
        file = listed[0] if listed else File(id=data, filename="gone.csv")
        found = ask(api, lambda client: read_columns(client, file))
        return fit_columns(found, fitted, task, entered)

    return call


def test_unknown_columns_are_guessed_and_entered(fit: Any, odd_file: str) -> None:
    entered, menus = fit(odd_file, {"epochs": 2})
    assert entered == {"epochs": 2, "columns": GUESS}
    assert menus.is_open
    assert "guess" in menus.note
    shown = menus.to_message()["menus"]
    assert [menu["value"] for menu in shown[:3]] == ["question", "reply", ""]
    assert shown[0]["label"] == "Question"
    assert "guess" in fit(odd_file, entered, fitted=odd_file)[1].note  # until others are chosen
    swapped = {"columns": {"prompt": "reply", "completion": "question"}}
    assert fit(odd_file, swapped, fitted=odd_file)[1].note == ""


def test_columns_of_another_file_are_removed(fit: Any, odd_file: str) -> None:
    entered, menus = fit("file-handbook", {"epochs": 2, "columns": GUESS})
    assert entered == {"epochs": 2}
    assert menus.to_message()["columns"] == ["prompt", "completion"]
    assert not menus.is_open


def test_entered_columns_of_this_file_stay(fit: Any, odd_file: str) -> None:
    before = {"columns": '{"prompt": "reply", "completion": "question"}'}
    entered, menus = fit(odd_file, before)
    assert entered is before
    assert menus.chosen == {"prompt": "reply", "completion": "question"}


def test_chosen_columns_are_entered() -> None:
    assert map_columns(TASK, {"epochs": 2}, {**GUESS, "text": ""}) == {
        "epochs": 2,
        "columns": GUESS,
    }
    assert map_columns(TASK, {"columns": GUESS}, {"prompt": "", "completion": ""}) == {}


@pytest.mark.parametrize(
    ("before", "chosen", "kept"),
    [
        ({"text": "a"}, {"prompt": "q", "text": "a"}, {"prompt": "q"}),
        (GUESS, {**GUESS, "messages": "turns"}, {"messages": "turns"}),
        (GUESS, {**GUESS, "system": "who"}, {**GUESS, "system": "who"}),
    ],
)
def test_last_choice_empties_menus_that_contradict_it(
    before: dict[str, str], chosen: dict[str, str], kept: dict[str, str]
) -> None:
    assert map_columns(TASK, {"columns": before}, chosen) == {"columns": kept}


def test_columns_of_another_task_are_guessed_again(fit: Any, odd_file: str, api: StubApi) -> None:
    api.rows.rows[odd_file] = [{"question": "Why?", "reply": "Because.", "topic": "reasons"}]
    entered, _ = fit(odd_file, {"columns": GUESS}, "sequence_classification")
    assert "columns" not in entered


def test_parts_without_a_menu_stay() -> None:
    entered = {"columns": {"tools": "functions", "prompt": "a"}}
    assert map_columns(TASK, entered, GUESS) == {"columns": {"tools": "functions", **GUESS}}


def test_entered_text_that_is_no_mapping_stays(fit: Any, odd_file: str) -> None:
    before = {"columns": "{'a'"}
    assert fit("file-handbook", before)[0] is before


def test_file_that_cannot_be_read_has_no_menus(fit: Any) -> None:
    before = {"columns": GUESS}
    entered, menus = fit("file-gone", before)
    assert entered is before
    assert menus.to_message()["menus"] == []


def test_columns_of_a_file_that_shares_some_names_are_removed(
    fit: Any, odd_file: str, api: StubApi
) -> None:
    api.rows.rows["file-handbook"] = [{"question": "Why?", "answer": "Because."}]
    assert fit("file-handbook", {"columns": GUESS}, fitted=odd_file)[0] == {}


def test_entered_name_that_the_file_lacks_stays_for_the_same_file(fit: Any, odd_file: str) -> None:
    before = {"columns": {"prompt": "question", "completion": "replies"}}
    entered, menus = fit(odd_file, before, fitted=odd_file)
    assert entered is before
    assert menus.chosen == {"prompt": "question"}


@pytest.mark.parametrize(
    ("remembered", "for_task", "mapping"),
    [
        (GUESS, TASK, GUESS),
        ({"prompt": "gone", "completion": "reply"}, TASK, {"completion": "reply"}),
        ({"chosen": "reply", "prompt": "question"}, TASK, {"prompt": "question"}),
        (GUESS, "preference", {}),
        ({}, TASK, {}),
    ],
)
def test_columns_chosen_last_are_recalled_for_their_task(
    remembered: dict[str, str], for_task: str, mapping: dict[str, str]
) -> None:
    assert recall_columns(TASK, ("question", "reply"), remembered, for_task) == mapping
