"""The newest evaluation of a run as HTML: its metrics, and the confusion matrix as a heat map."""

from collections.abc import Sequence
from html import escape

from apps.client.resources import ConfusionMatrix, StepEvaluation
from apps.ui import markup

MAX_LABELS_SHOWN = 20
NAMES = {
    "accuracy": "Accuracy",
    "f1": "F1",
    "f1_macro": "F1, mean of classes",
    "f1_micro": "F1, all labels together",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "top5": "Among the best 5",
    "reward_accuracy": "Reward accuracy",
    "reward_margin": "Reward margin",
    "kl": "KL divergence",
}


def render_evaluation(evaluations: Sequence[StepEvaluation]) -> str:
    """Render the newest of evaluations; empty without any, or if only its loss was measured."""
    if not evaluations or not evaluations[0].metrics:
        return ""
    newest = evaluations[0]
    figures = [] if newest.loss is None else [("Validation loss", f"{newest.loss:.4f}")]
    figures += [
        (NAMES.get(name, name), f"{value:.3f}")
        for name, value in newest.metrics.items()
        if "/" not in name  # those of single classes are in the table
    ]
    matrix = newest.confusion_matrix
    return (
        f'<section class="ts-evaluation"><h3>Evaluation after step {newest.step:,}</h3>'
        f"{markup.render_figures(figures)}{_render_matrix(matrix, newest) if matrix else ''}"
        "</section>"
    )


def _render_matrix(matrix: ConfusionMatrix, evaluation: StepEvaluation) -> str:
    if len(matrix.labels) > MAX_LABELS_SHOWN:
        return (
            f'<p class="ts-muted">The API has the confusion matrix of these '
            f"{len(matrix.labels)} classes, at /evaluations.</p>"
        )
    head = "".join(
        f'<th scope="col" translate="no">{escape(label)}</th>' for label in matrix.labels
    )
    lines = "".join(
        _render_line(place, label, counts, evaluation)
        for place, (label, counts) in enumerate(zip(matrix.labels, matrix.counts, strict=True))
    )
    return (
        '<div class="ts-table"><table class="ts-confusion"><caption>Rows by their class (lines) '
        "and the predicted class (columns)</caption>"
        f'<thead><tr><th scope="col">class</th>{head}<th scope="col">F1</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _render_line(place: int, label: str, counts: Sequence[int], evaluation: StepEvaluation) -> str:
    """Render the rows of one class; a cell is as dark as its share of them."""
    total = max(1, sum(counts))
    cells = "".join(
        f'<td class="{"ts-right-class" if column == place else "ts-wrong-class"}" '
        f'style="--ts-share:{count / total:.3f}">{count:,}</td>'
        for column, count in enumerate(counts)
    )
    value = evaluation.metrics.get(f"f1/{label}")
    f1 = markup.UNKNOWN if value is None else f"{value:.3f}"
    return f'<tr><th scope="row" translate="no">{escape(label)}</th>{cells}<td>{f1}</td></tr>'
