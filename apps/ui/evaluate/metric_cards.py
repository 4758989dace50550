"""The metrics of evaluated models as HTML: one card for each, with the better values marked."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple
from urllib.parse import quote

from apps.client.evaluation_resources import EvaluatedModel
from apps.ui import markup


class Metric(NamedTuple):
    """A metric of a model."""

    field: str
    label: str
    meaning: str
    is_share: bool = False
    is_lower_better: bool = False


METRICS = (
    Metric(
        "exact_match", "Exact match", "Answers equal to the expected one, apart from spaces.", True
    ),
    Metric("contains", "Contains", "Answers in which the expected one occurs, in any case.", True),
    Metric(
        "rouge_l",
        "ROUGE-L",
        "How far the words of an answer follow those of the expected one: 1 if they are the same, "
        "0 if none is.",
    ),
    Metric(
        "perplexity",
        "Perplexity",
        "How unlikely the expected answer is for the model: 1 if it is certain of each token. "
        "Lower is better.",
        is_lower_better=True,
    ),
)
NO_VALUE = markup.UNKNOWN


def read_metric(model: EvaluatedModel, metric: Metric) -> float | None:
    """Return a metric of a model; None if no row is done."""
    values = {
        "exact_match": model.exact_match,
        "contains": model.contains,
        "rouge_l": model.rouge_l,
        "perplexity": model.perplexity,
    }
    return values[metric.field]


def format_metric(model: EvaluatedModel, metric: Metric) -> str:
    """Format a metric: shares as percentages, other values with two or three decimals."""
    value = read_metric(model, metric)
    if value is None:
        return NO_VALUE
    if metric.is_share:
        return f"{value:.1%}"
    if metric.is_lower_better:
        return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"
    return f"{value:.3f}"


def find_better(models: Sequence[EvaluatedModel], metric: Metric) -> int | None:
    """Return which of two models is better by a metric; None if they are shown as equal."""
    values = [read_metric(model, metric) for model in models]
    known = [value for value in values if value is not None]
    if len(known) != 2 or len(models) != 2:
        return None
    if len({format_metric(model, metric) for model in models}) == 1:
        return None
    best = min(known) if metric.is_lower_better else max(known)
    return values.index(best)


def render_cards(models: Sequence[EvaluatedModel]) -> str:
    """Render one card for each model, and what the metrics mean."""
    better = {metric: find_better(models, metric) for metric in METRICS}
    cards = "".join(
        _render_card(model, {metric for metric in METRICS if better[metric] == place})
        for place, model in enumerate(models)
    )
    meanings = "".join(
        f"<div><dt>{metric.label}</dt><dd>{metric.meaning}</dd></div>" for metric in METRICS
    )
    return (
        f'<div class="ts-metric-cards">{cards}</div><details class="ts-meanings">'
        f"<summary>What the figures mean</summary><dl>{meanings}</dl></details>"
    )


def _render_card(model: EvaluatedModel, better: set[Metric]) -> str:
    figures = "".join(_render_figure(model, metric, metric in better) for metric in METRICS)
    return (
        f'<article class="ts-metric-card" data-model="{escape(model.model)}">'
        f"<h3>{render_model_name(model)}</h3>"
        f'<p class="ts-muted">{describe_rows(model)}</p><dl>{figures}</dl></article>'
    )


def _render_figure(model: EvaluatedModel, metric: Metric, is_better: bool) -> str:
    arrow = "▼" if metric.is_lower_better else "▲"
    mark = f'<span class="ts-better">{arrow} better</span>' if is_better else ""
    kind = ' class="ts-is-better"' if is_better else ""
    return (
        f'<div{kind} data-metric="{metric.field}"><dt>{metric.label}</dt>'
        f"<dd>{format_metric(model, metric)}{mark}</dd></div>"
    )


def render_model_name(model: EvaluatedModel) -> str:
    """Render the id of a model as a link, after the alias by which it was requested."""
    alias = model.requested if model.requested not in ("", model.model) else ""
    href = f"./models?model={quote(model.model, safe='')}"
    link = f'<a href="{href}" translate="no">{escape(model.model)}</a>'
    return f"{markup.keep(alias)} → {link}" if alias else link


def describe_rows(model: EvaluatedModel) -> str:
    """Describe how many rows a model has answered."""
    text = f"{model.num_rows:,} {'row' if model.num_rows == 1 else 'rows'}"
    return f"{text}, {model.num_failed:,} failed" if model.num_failed else text
