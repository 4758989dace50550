"""What a browser may ask the page "Runs" for."""

import pytest

from apps.ui.runs.view_request import (
    MAX_COMPARED,
    ViewRequest,
    read_action_request,
    read_address,
    read_view_request,
)


def test_view_is_read() -> None:
    asked = read_view_request({"view": "compare", "compare": ["a", "b"], "applied": 3, "other": 1})
    assert asked == ViewRequest(view="compare", compare=("a", "b"), applied=3)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"view": "admin"},
        {"run": {"path": "/etc/passwd"}},
        {"view": "compare", "compare": ["a"] * (MAX_COMPARED + 1)},
    ],
)
def test_invalid_request_shows_the_list(data: object) -> None:
    assert read_view_request(data) == ViewRequest()


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ({}, ViewRequest()),
        ({"state": "failed", "search": "mine"}, ViewRequest(status="failed", search="mine")),
        ({"run": "a", "compare": "b,c"}, ViewRequest(view="run", run="a")),
        ({"compare": "a,,b"}, ViewRequest(view="compare", compare=("a", "b"))),
        ({"compare": "a,b,c,d,e,f,g"}, ViewRequest(view="compare", compare=tuple("abcdef"))),
        ({"compare": "a"}, ViewRequest()),
    ],
)
def test_address_names_what_is_asked_for_first(query: dict[str, str], asked: ViewRequest) -> None:
    assert read_address(query) == asked


def test_long_texts_are_cut() -> None:
    asked = {"view": "run", "run": "ftjob-1", "log_search": "x" * 1000, "action": "pause"}
    assert read_view_request(asked).place == "run ftjob-1 "
    action = read_action_request(asked)
    assert action is not None
    assert action.log_search == "x" * 200


@pytest.mark.parametrize("action", [None, "", "drop", "__class__"])
def test_unknown_action_is_ignored(action: str | None) -> None:
    assert read_action_request({"view": "run", "run": "ftjob-1", "action": action}) is None


def test_filters_do_not_change_the_place() -> None:
    assert ViewRequest(status="failed").place == ViewRequest(search="x", after="y").place
    assert ViewRequest(view="run", run="a").place != ViewRequest(view="run", run="b").place
