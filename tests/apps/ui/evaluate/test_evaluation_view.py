"""One evaluation as HTML, and what is requested for it."""

from typing import Any

import pytest

from apps.client.evaluation_resources import Evaluation
from apps.client.resources import read_resource
from apps.ui.evaluate.evaluate_request import EvaluateRequest
from apps.ui.evaluate.evaluation_view import (
    describe_again,
    read_evaluation,
    render_evaluation_buttons,
    render_head,
    render_progress,
)
from apps.ui.tab_state import Content, TabState, write_message
from tests.apps.stub_api import StubApi, ask
from tests.apps.stub_evaluations import StubEvaluations, add_sample_evaluations
from tests.apps.ui.hostile import HOSTILE, assert_escaped

MAY_CHANGE = ("jobs.read", "jobs.write")


def make_evaluation(status: str = "succeeded", **changes: Any) -> Evaluation:
    return read_resource(Evaluation, StubEvaluations().add("eval-1", status, **changes))


def read(api: StubApi, state: TabState | None = None, **asked: Any) -> Content:
    request = EvaluateRequest(view="evaluation", **{"evaluation": "eval-1", **asked})
    before = state or TabState()
    return ask(api, lambda client: read_evaluation(client, request, before, (2.0, 30.0)))


@pytest.fixture
def samples(api: StubApi) -> StubApi:
    add_sample_evaluations(api.evaluations_of_models)
    return api


def test_rows_are_paged_and_filtered(samples: StubApi) -> None:
    first = read(samples)
    assert first.lists["rows"] == [f"row-{number}" for number in range(1, 11)]
    assert (first.values["has_more"], first.values["interval_s"]) == (True, 30.0)
    assert first.values["title"] == "latest → base-tuned and base"
    last = read(samples, after="row-20")
    assert (last.lists["rows"][0], last.values["has_more"]) == ("row-21", False)
    wrong = read(samples, evaluation="eval-2", filter="wrong", after="row-12")
    assert "No row has a wrong answer" in wrong.parts["rows-empty"]
    assert wrong.values["interval_s"] == 2.0
    assert "rows?filter=wrong" in wrong.parts["rows-download"]


def test_name_of_the_rows_is_requested_once(samples: StubApi) -> None:
    first = read(samples)
    assert 'Rows of <span translate="no">handbook.jsonl</span>' in first.parts["evaluation-source"]
    _, state = write_message(first, TabState())
    assert "evaluation-source" not in read(samples, state).parts


def test_source_is_its_id_if_it_is_gone(samples: StubApi) -> None:
    samples.evaluations_of_models.evaluations["eval-1"]["file"] = "file-gone"
    assert (
        'Rows of <span translate="no">file-gone</span>' in read(samples).parts["evaluation-source"]
    )
    samples.evaluations_of_models.evaluations["eval-1"]["job"] = "ftjob-gone"
    assert ">ftjob-gone</a>" in read(samples).parts["evaluation-source"]


def test_progress_is_a_bar_once_rows_are_counted() -> None:
    waiting = render_progress(make_evaluation("queued"))
    assert "<progress" not in waiting
    assert "Duration" not in waiting
    running = render_progress(make_evaluation("running", num_rows=40, num_done=10))
    assert 'value="0.2500"' in running
    assert "10 of 40" in running
    assert "data-since" in running
    ended = render_progress(make_evaluation(created_at=100, finished_at=170))
    assert "1 min 10 s" in ended


def test_buttons_suit_the_status() -> None:
    active = render_evaluation_buttons(make_evaluation("running"), MAY_CHANGE)
    assert 'data-action="cancel"' in active
    assert "delete" not in active
    ended = render_evaluation_buttons(make_evaluation(), MAY_CHANGE)
    assert 'data-action="delete"' in ended
    assert "cancel" not in ended
    assert render_evaluation_buttons(make_evaluation(), ("jobs.read",)) == ""


def test_metrics_are_shown_to_a_key_that_may_not_read_rows(samples: StubApi) -> None:
    samples.evaluations_of_models.are_rows_refused = True
    content = read(samples)
    assert "76.0%" in content.parts["evaluation-cards"]
    assert "does not allow &#x27;files.read&#x27;" in content.parts["rows-empty"]
    assert content.parts["rows-download"] == ""


def test_evaluation_is_repeated_with_the_same_fields() -> None:
    assert describe_again(make_evaluation()) == (
        "models=latest&rows=file:file-handbook&max_rows=100&max_tokens=256"
    )
    assert "rows=job:ftjob-1&" in describe_again(make_evaluation(job="ftjob-1"))
    assert "%26" in describe_again(make_evaluation(file="a&b"))


def test_failure_is_shown_and_escaped() -> None:
    error = {"code": "x", "message": HOSTILE}
    evaluation = make_evaluation("failed", error=error)
    html = render_head(evaluation)
    assert 'role="alert"' in html
    assert_escaped(html)
    assert_escaped(render_evaluation_buttons(make_evaluation(file=HOSTILE), MAY_CHANGE))
