"""Requests of the script, which may have been changed in the browser."""

from apps.ui.evaluate.evaluate_request import (
    EvaluateRequest,
    read_address,
    read_evaluate_action,
    read_evaluate_request,
)


def test_request_is_read_and_long_texts_are_cut() -> None:
    asked = read_evaluate_request(
        {"view": "evaluation", "evaluation": "e" * 900, "filter": "wrong", "applied": 7, "new": 1}
    )
    assert (len(asked.evaluation), asked.filter, asked.applied) == (200, "wrong", 7)
    assert asked.place == f"evaluation {asked.evaluation}"


def test_invalid_request_shows_the_list() -> None:
    invalid: list[object] = [None, [], {"view": "files"}, {"filter": "x"}, {"num_listed": 10**9}]
    for data in invalid:
        assert read_evaluate_request(data) == EvaluateRequest()


def test_only_known_changes_are_read() -> None:
    asked = read_evaluate_action({"action": "start", "models": ["base", "latest"], "max_rows": "9"})
    assert asked is not None
    assert (asked.models, asked.max_rows, asked.rows) == (("base", "latest"), "9", "")
    for data in ({}, {"action": "publish"}, {"action": "start", "models": ["a", "b", "c"]}):
        assert read_evaluate_action(data) is None


def test_address_names_what_is_asked_for_first() -> None:
    assert read_address({"model": "m"}) == EvaluateRequest(model="m", reads_menus=True)
    shown = read_address({"evaluation": "eval-1", "filter": "wrong"})
    assert shown == EvaluateRequest(view="evaluation", evaluation="eval-1", filter="wrong")
    assert read_address({"evaluation": "eval-1", "filter": "x"}) == EvaluateRequest()
