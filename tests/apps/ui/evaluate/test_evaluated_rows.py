"""Rows of an evaluation as HTML."""

from typing import Any

from apps.client.evaluation_resources import EvaluationRow
from apps.client.resources import read_resource
from apps.ui.evaluate.evaluated_rows import (
    MAX_CHARACTERS,
    WAITING,
    describe_no_rows,
    render_evaluated_row,
    render_rows,
)
from tests.apps.stub_evaluations import make_row
from tests.apps.ui.hostile import HOSTILE, assert_escaped


def read_row(row: dict[str, Any], **changes: Any) -> EvaluationRow:
    row["answers"][-1] |= changes
    return read_resource(EvaluationRow, row)


def test_row_shows_verdicts_and_differing_words() -> None:
    row = make_row(3, "When?", "at nine", tuned="at nine", base="at ten, or at nine")
    html = render_evaluated_row(read_row(row, finish_reason="length"))
    assert "<h4>Row 3 · question</h4>" in html
    assert "✓ exact" in html
    assert "≈ contains it" in html
    assert html.count("<mark>") == 1
    assert "cut at the most tokens of an answer" in html
    assert "perplexity 1.50" in html


def test_missing_words_are_counted() -> None:
    html = render_evaluated_row(read_row(make_row(1, "When?", "at nine or ten", base="at nine")))
    assert "✗ wrong" in html
    assert "2 expected words are missing" in html
    assert "<mark>" not in html


def test_failed_answer_shows_why() -> None:
    row = make_row(1, "When?", "at nine", base="")
    html = render_evaluated_row(read_row(row, error="too many tokens", perplexity=None))
    assert "✗ failed" in html
    assert "too many tokens" in html
    assert "ROUGE-L" not in html


def test_long_text_is_cut_and_reached_by_keyboard() -> None:
    html = render_evaluated_row(read_row(make_row(1, "x" * (MAX_CHARACTERS + 5), "", base="")))
    assert "… (5 characters more)" in html
    assert html.count('tabindex="0"') == 1
    assert html.count(">empty</i>") == 2


def test_each_text_is_escaped() -> None:
    row = make_row(1, HOSTILE, HOSTILE, base=HOSTILE)
    row["answers"][0]["model"] = row["id"] = HOSTILE
    for error in (None, HOSTILE):
        assert_escaped(render_evaluated_row(read_row(row, error=error, exact_match=False)))


def test_parts_are_named_like_their_rows() -> None:
    rows = [read_row(make_row(number, "a", "b", base="c")) for number in (1, 2)]
    assert list(render_rows(rows)) == ["rows/row-1", "rows/row-2"]


def test_absence_of_rows_is_explained() -> None:
    assert describe_no_rows("all", is_active=True) == WAITING
    assert "different" in describe_no_rows("different", is_active=True)
    assert "wrong" in describe_no_rows("wrong", is_active=False)
