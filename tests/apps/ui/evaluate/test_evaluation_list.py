"""The list of evaluations as a table."""

from typing import Any

from apps.client.evaluation_resources import Evaluation
from apps.client.resources import read_resource
from apps.ui.evaluate.evaluate_request import EvaluateRequest
from apps.ui.evaluate.evaluation_list import (
    EMPTY,
    EMPTY_OF_MODEL,
    read_evaluation_list,
    render_evaluation_line,
)
from apps.ui.tab_state import Content, TabState
from tests.apps.stub_api import StubApi, ask
from tests.apps.stub_evaluations import StubEvaluations, make_evaluated_model
from tests.apps.ui.hostile import HOSTILE, assert_escaped


def read(api: StubApi, **asked: Any) -> Content:
    request = EvaluateRequest(**asked)
    return ask(api, lambda client: read_evaluation_list(client, request, TabState(), (3.0, 10.0)))


def render(status: str = "running", **changes: Any) -> str:
    evaluation = StubEvaluations().add("eval-1", status, **changes)
    return render_evaluation_line(
        read_resource(Evaluation, evaluation), {"file-handbook": "handbook.jsonl"}
    )


def test_list_begins_empty_with_what_to_do(api: StubApi) -> None:
    content = read(api)
    assert EMPTY in content.parts["list-empty"]
    assert content.lists == {"evaluations": []}
    assert content.values["interval_s"] == 10.0
    assert {"models", "rows"} == set(content.values["menus"])  # type: ignore[call-overload]
    of_model = read(api, model="base")
    assert EMPTY_OF_MODEL in of_model.parts["list-empty"]
    assert "Show all" in of_model.parts["list-model"]


def test_newest_are_listed_first_and_more_on_request(api: StubApi) -> None:
    for number in range(25):
        api.evaluations_of_models.add(f"eval-{number}", "succeeded")
    api.evaluations_of_models.add("eval-25", "queued")
    content = read(api)
    assert content.lists["evaluations"] == [f"eval-{number}" for number in range(25, 5, -1)]
    assert (content.values["has_more"], content.values["interval_s"]) == (True, 3.0)
    assert content.parts["list-empty"] == ""
    longer = read(api, num_listed=40)
    assert (len(longer.lists["evaluations"]), longer.values["has_more"]) == (26, False)


def test_line_has_the_metrics_of_each_model() -> None:
    html = render(
        models=[
            make_evaluated_model("base-tuned", "latest", exact_match=0.75, perplexity=1.5),
            make_evaluated_model("base", exact_match=0.5),
        ],
        num_rows=45,
        num_done=9,
    )
    for text in ("latest → base-tuned", "75.0%", "50.0%", "1.50", "20%", "handbook.jsonl"):
        assert text in html
    assert "at most" not in html
    assert "at most 100 rows" in render()


def test_rows_of_a_run_are_linked() -> None:
    html = render(file=None, job="ftjob-18ebcb7cc8efc31d11568e8e", num_rows=1)
    link = (
        '<a href="./runs?run=ftjob-18ebcb7cc8efc31d11568e8e" title="ftjob-18ebcb7cc8efc31d11568e8e"'
    )
    assert f'validation of {link} translate="no">ftjob-…568e8e</a>' in html
    assert "1 row</span>" in html


def test_hostile_names_are_escaped() -> None:
    models = [make_evaluated_model(HOSTILE, HOSTILE)]
    assert_escaped(render(models=models, file=HOSTILE))
    assert_escaped(render(models=models, job=HOSTILE, status=HOSTILE))
