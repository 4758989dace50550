"""The evaluations of one model as HTML: its metrics, and what it was compared with."""

from collections.abc import Sequence
from urllib.parse import quote

from apps.client.evaluation_resources import Evaluation
from apps.ui import markup
from apps.ui.evaluate.evaluation_list import render_state
from apps.ui.evaluate.metric_cards import METRICS, format_metric

MAX_SHOWN = 5
NO_EVALUATIONS = "No evaluations yet: press Evaluate to measure this model on rows."


def render_evaluations(model_id: str, evaluations: Sequence[Evaluation]) -> str:
    """Render the newest evaluations of a model, newest first."""
    if not evaluations:
        return f'<p class="ts-empty">{NO_EVALUATIONS}</p>'
    labels = ("Evaluation", "State", *(metric.label for metric in METRICS))
    head = "".join(f'<th scope="col">{label}</th>' for label in labels)
    rows = "".join(_render_line(model_id, one) for one in evaluations[:MAX_SHOWN])
    link = f"./evaluate?model={quote(model_id, safe='')}"
    more = f'<p><a href="{link}">All evaluations of this model</a></p>'
    return (
        '<div class="ts-evaluations" tabindex="0" role="group" aria-label="Evaluations">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{more if len(evaluations) > MAX_SHOWN else ''}"
    )


def _render_line(model_id: str, evaluation: Evaluation) -> str:
    own = next((one for one in evaluation.models if one.model == model_id), None)
    others = [one.model for one in evaluation.models if one is not own]
    name = f"compared with {markup.keep(others[0])}" if own and others else "alone"
    metrics = "".join(
        f"<td>{markup.UNKNOWN if own is None else format_metric(own, metric)}</td>"
        for metric in METRICS
    )
    return (
        f'<tr><th scope="row"><a href="./evaluate?evaluation={quote(evaluation.id, safe="")}">'
        f"{markup.render_moment(evaluation.created_at)}</a>, {name}</th>"
        f"<td>{render_state(evaluation)}</td>{metrics}</tr>"
    )
