"""Metrics of models as HTML, with the better values marked."""

import re
from typing import Any

import pytest

from apps.client.evaluation_resources import EvaluatedModel
from apps.ui.evaluate.metric_cards import METRICS, find_better, format_metric, render_cards
from tests.apps.ui.hostile import HOSTILE, assert_escaped

EXACT, CONTAINS, ROUGE_L, PERPLEXITY = METRICS


def make_model(name: str = "base", **metrics: Any) -> EvaluatedModel:
    return EvaluatedModel.model_validate({"model": name, "num_rows": 12, **metrics})


def test_metrics_are_formatted() -> None:
    model = make_model(exact_match=1 / 3, rouge_l=0.91149, perplexity=1.6288)
    shown = [format_metric(model, metric) for metric in METRICS]
    assert shown == ["33.3%", "–", "0.911", "1.63"]
    assert format_metric(make_model(perplexity=123456.7), PERPLEXITY) == "123,457"


@pytest.mark.parametrize(
    ("first", "second", "better"),
    [
        ({"exact_match": 0.5}, {"exact_match": 0.75}, 1),
        ({"exact_match": 0.5}, {"exact_match": 0.50001}, None),  # both are shown as 50.0%
        ({"exact_match": 0.5}, {}, None),
    ],
)
def test_better_share_is_the_larger(
    first: dict[str, Any], second: dict[str, Any], better: int | None
) -> None:
    assert find_better([make_model(**first), make_model(**second)], EXACT) == better


def test_better_perplexity_is_the_smaller() -> None:
    models = [make_model(perplexity=1.5), make_model(perplexity=40)]
    assert find_better(models, PERPLEXITY) == 0
    assert find_better(models[:1], PERPLEXITY) is None


def test_cards_mark_better_values_by_words() -> None:
    html = render_cards(
        [
            make_model("tuned", requested="latest", exact_match=0.9, perplexity=1.5, num_failed=2),
            make_model("base", exact_match=0.1, perplexity=1.4),
        ]
    )
    tuned, base = html.split("<article")[1:]
    assert 'latest</span> → <a href="./models?model=tuned" translate="no">tuned</a>' in tuned
    assert "12 rows, 2 failed" in tuned
    assert re.findall(r'data-metric="(\w+)"><dt>[^<]*</dt><dd>[^<]*<span', tuned) == ["exact_match"]
    assert re.findall(r'data-metric="(\w+)"><dt>[^<]*</dt><dd>[^<]*<span', base) == ["perplexity"]
    assert ("▲ better" in tuned, "▼ better" in tuned) == (True, False)
    assert ("▲ better" in base, "▼ better" in base) == (False, True)  # a lower perplexity
    assert_escaped(render_cards([make_model(HOSTILE, requested=HOSTILE)]))
