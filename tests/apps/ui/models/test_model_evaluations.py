"""The evaluations of one model as HTML."""

from apps.client.evaluation_resources import Evaluation
from apps.client.resources import read_resource
from apps.ui.models.model_evaluations import MAX_SHOWN, NO_EVALUATIONS, render_evaluations
from tests.apps.stub_evaluations import StubEvaluations, make_evaluated_model
from tests.apps.ui.hostile import HOSTILE, assert_escaped


def make_evaluation(*names: str) -> Evaluation:
    models = [
        make_evaluated_model(name, exact_match=0.5 + place / 4) for place, name in enumerate(names)
    ]
    return read_resource(Evaluation, StubEvaluations().add("eval-1", "succeeded", models=models))


def test_metrics_of_the_model_are_shown() -> None:
    html = render_evaluations("tuned", [make_evaluation("base", "tuned"), make_evaluation("tuned")])
    assert 'compared with <span translate="no">base</span>' in html
    assert "75.0%" in html
    assert "alone" in html
    assert 'href="./evaluate?evaluation=eval-1"' in html
    assert "All evaluations" not in html


def test_further_ones_are_linked() -> None:
    html = render_evaluations("tuned", [make_evaluation("tuned")] * (MAX_SHOWN + 1))
    assert html.count("<tr>") == 1 + MAX_SHOWN
    assert 'href="./evaluate?model=tuned"' in html


def test_without_evaluations_it_is_said_what_to_do() -> None:
    assert NO_EVALUATIONS in render_evaluations("tuned", [])


def test_names_are_escaped() -> None:
    assert_escaped(render_evaluations("tuned", [make_evaluation("tuned", HOSTILE)]))
