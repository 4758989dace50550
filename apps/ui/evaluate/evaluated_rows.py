"""The rows of an evaluation as HTML: question, expected answer and answers side by side."""

from collections.abc import Sequence
from html import escape

from apps.client.evaluation_resources import EvaluatedAnswer, EvaluationRow
from apps.client.evaluations import RowFilter
from apps.ui import markup
from apps.ui.evaluate.word_marks import mark_answer

MAX_CHARACTERS = 4000
"""Characters of a text that are shown; the CSV has all."""
MAX_UNSCROLLED = 1000
"""Characters of a text, as HTML, that is shown at its full height."""
_NO_ROWS: dict[RowFilter, str] = {
    "all": "No rows.",
    "different": "No row has different answers.",
    "wrong": "No row has a wrong answer.",
}
WAITING = "No row is done yet."


def describe_no_rows(chosen: RowFilter, *, is_active: bool) -> str:
    """Describe why no row is shown."""
    return WAITING if is_active and chosen == "all" else _NO_ROWS[chosen]


def render_rows(rows: Sequence[EvaluationRow]) -> dict[str, str]:
    """Render rows, by the names of their parts."""
    return {f"rows/{row.id}": render_evaluated_row(row) for row in rows}


def render_evaluated_row(row: EvaluationRow) -> str:
    """Render one row."""
    answers = "".join(_render_answer(answer, row.expected) for answer in row.answers)
    return (
        f'<li class="ts-eval-row"><h4>Row {row.number:,} · question</h4>'
        f'{_render_box(escape(_cut(row.prompt)))}<div class="ts-eval-answers">'
        f'<div><p class="ts-eval-label">Expected</p>{_render_box(escape(_cut(row.expected)))}</div>'
        f"{answers}</div></li>"
    )


def _render_box(content: str) -> str:
    """Render a text; a long one scrolls, so that the keyboard must reach it."""
    if not content:
        return '<div class="ts-eval-text" translate="no"><i translate="yes">empty</i></div>'
    if len(content) <= MAX_UNSCROLLED:
        return f'<div class="ts-eval-text" translate="no">{content}</div>'
    return f'<div class="ts-eval-text ts-eval-long" translate="no" tabindex="0">{content}</div>'


def _render_answer(answer: EvaluatedAnswer, expected: str) -> str:
    if answer.error is not None:
        content, note = f'<p class="ts-eval-fault">{markup.keep_english(answer.error)}</p>', ""
        verdict = '<span class="ts-verdict ts-is-wrong">✗ failed</span>'
    else:
        content, note = _mark(answer, expected)
        verdict = _render_verdict(answer)
    return (
        f'<div class="ts-eval-answer"><p class="ts-eval-label">'
        f"{markup.keep(answer.model)}{verdict}</p>"
        f'{_render_box(content)}<p class="ts-eval-note">{note}</p></div>'
    )


def _mark(answer: EvaluatedAnswer, expected: str) -> tuple[str, str]:
    """Return an answer with its differing words marked, and the line below it."""
    notes = [f"ROUGE-L {answer.rouge_l:.3f}"]
    if answer.perplexity is not None:
        notes.append(f"perplexity {answer.perplexity:,.2f}")
    if answer.exact_match:
        content = escape(_cut(answer.text))
    else:
        content, num_missing = mark_answer(_cut(expected), _cut(answer.text))
        if num_missing:
            words = "word is" if num_missing == 1 else "words are"
            notes.append(f"{num_missing:,} expected {words} missing")
    if answer.finish_reason == "length":
        notes.append("cut at the most tokens of an answer")
    return content, " · ".join(notes)


def _render_verdict(answer: EvaluatedAnswer) -> str:
    if answer.exact_match:
        return '<span class="ts-verdict ts-is-exact">✓ exact</span>'
    if answer.contains:
        return '<span class="ts-verdict">≈ contains it</span>'
    return '<span class="ts-verdict ts-is-wrong">✗ wrong</span>'


def _cut(text: str) -> str:
    """Return the beginning of a long text, and how much more there is."""
    num_more = len(text) - MAX_CHARACTERS
    return text if num_more <= 0 else f"{text[:MAX_CHARACTERS]}… ({num_more:,} characters more)"
