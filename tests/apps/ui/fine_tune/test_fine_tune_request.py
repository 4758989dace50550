"""Requests of the page "Fine-tune", which come from a browser, and its address and cookie."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from apps.ui.fine_tune.fine_tune_request import (
    CHOICE_COOKIE,
    read_address,
    read_choice_request,
    read_data_request,
    read_fields_request,
    read_fine_tune_action,
)

COLUMNS = {"prompt": "question"}
KEPT = {"data": "file-1", "task": "causal_lm", "columns": COLUMNS}


def keep(value: object) -> dict[str, str]:
    return {CHOICE_COOKIE: quote(json.dumps(value))}


def test_cookie_has_the_choice_of_the_last_visit() -> None:
    asked = read_address({}, keep(KEPT))
    assert (asked.data, asked.task, asked.columns) == ("file-1", "causal_lm", COLUMNS)
    assert asked.recalls
    assert asked.changes == {"page"}
    assert not read_address({}, keep({"data": "file-1"})).recalls


def test_address_names_data_and_a_run() -> None:
    other = read_address({"data": "file-2", "from": "ftjob-1"}, keep(KEPT))
    assert (other.data, other.run, other.recalls, other.columns) == (
        "file-2",
        "ftjob-1",
        False,
        {},
    )
    assert read_address({"data": "file-1"}, keep(KEPT)).columns == COLUMNS


@pytest.mark.parametrize(
    "cookie",
    [
        *("", "no JSON", "[]", "[" * 100_000, "%ff%fe"),
        json.dumps({"data": ["file-1"]}),
        json.dumps({"columns": "question"}),
        json.dumps({"columns": {"prompt": 5}}),
    ],
)
def test_other_cookies_are_those_of_a_first_visit(cookie: str) -> None:
    asked = read_address({}, {CHOICE_COOKIE: cookie})
    assert (asked.data, asked.columns) == ("", {})
    assert asked.changes == {"page"}


@pytest.mark.parametrize("kept", [None, 5, {"data": 5}, {"columns": []}])
def test_address_counts_with_any_cookie(kept: Any) -> None:
    asked = read_address({"data": "file-2", "from": "ftjob-1"}, keep(kept))
    assert (asked.data, asked.run) == ("file-2", "ftjob-1")


def test_entered_settings_come_as_text() -> None:
    assert read_choice_request({"entered": '{"columns": {"path": "p"}}'}).entered == {
        "columns": {"path": "p"}
    }
    assert read_choice_request({"entered": "[" * 90_000}).changes == {"page"}


@pytest.mark.parametrize("data", [None, 5, [], {"serial": 3, "changes": ["nonsense"]}])
def test_invalid_choice_is_that_of_a_new_page(data: Any) -> None:
    asked = read_choice_request(data)
    assert asked.changes == {"page"}
    assert asked.serial == (3 if isinstance(data, dict) else 0)


def test_invalid_requests_ask_for_nothing() -> None:
    assert read_data_request({"serial": 2, "tab": "other"}).data == ""
    assert read_fields_request({"serial": 2, "fields": [1]}).serial == 2
    assert read_fine_tune_action({"action": "erase"}) is None
    assert read_fine_tune_action({"action": "save", "findings": "secrets"}) is None


def test_pasted_texts_are_cut() -> None:
    assert len(read_data_request({"search": "x" * 5000}).search) == 200
