"""The metrics and the confusion matrix of an evaluation as HTML."""

from apps.client.resources import ConfusionMatrix, StepEvaluation
from apps.ui.runs.evaluation import render_evaluation

MATRIX = ConfusionMatrix(labels=("no", "<yes>"), counts=((3, 1), (0, 2)))


def make_evaluation(matrix: ConfusionMatrix | None = MATRIX) -> StepEvaluation:
    metrics = {"accuracy": 5 / 6, "f1/no": 6 / 7, "f1/<yes>": 0.8}
    return StepEvaluation(step=1200, loss=0.25, metrics=metrics, confusion_matrix=matrix)


def test_metrics_and_counts_are_shown() -> None:
    shown = render_evaluation([make_evaluation()])
    for text in ("after step 1,200", "0.2500", "Accuracy", "0.833", "0.857", "&lt;yes&gt;"):
        assert text in shown
    assert 'class="ts-right-class" style="--ts-share:0.750">3<' in shown
    assert 'class="ts-wrong-class" style="--ts-share:0.250">1<' in shown
    assert "<yes>" not in shown


def test_matrix_of_many_classes_is_left_to_the_api() -> None:
    labels = tuple(map(str, range(21)))
    shown = render_evaluation([make_evaluation(ConfusionMatrix(labels=labels, counts=()))])
    assert "<table" not in shown
    assert "these 21 classes" in shown


def test_evaluation_of_language_model_is_not_shown() -> None:
    assert render_evaluation([StepEvaluation(step=2, loss=1.0)]) == ""
    assert render_evaluation([]) == ""


def test_without_matrix_only_metrics_are_shown() -> None:
    assert "<table" not in render_evaluation([make_evaluation(None)])
