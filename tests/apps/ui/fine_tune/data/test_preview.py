"""The preview of data as HTML, with hostile values escaped."""

from typing import Any

import pytest

from apps.client.resources import Preview, Row, Token
from apps.ui.fine_tune.data.preview import MAX_SHOWN_TOKENS, render_preview
from tests.apps.ui.hostile import HOSTILE, assert_escaped


def make_preview(tokens: list[Token], **changes: Any) -> Preview:
    return Preview(
        **changes,
        format="chat",
        num_rows=1200,
        num_tokens=4000,
        num_learned_tokens=1000,
        num_dropped_rows=0,
        num_truncated_rows=2,
        max_length=512,
        rows=(Row(number=6, line=7, tokens=tuple(tokens)),),
    )


def test_preview_shows_counts_and_marks_learned_tokens() -> None:
    html = render_preview(
        make_preview([Token(text="<|im_start|>", learned=False), Token(text="yes", learned=True)])
    )
    assert "1,200" in html
    assert "25%" in html
    assert "Row 6 (line 7)" in html
    assert '<mark class="ts-token ts-learned">yes</mark>' in html
    assert '<span class="ts-token ts-context ts-special">&lt;|im_start|&gt;</span>' in html


def test_long_row_is_truncated_with_note() -> None:
    html = render_preview(make_preview([Token(text="a", learned=True)] * 200))
    assert html.count("<mark") == MAX_SHOWN_TOKENS + 1  # plus one in the legend
    assert "40 more tokens" in html


def test_preview_lists_ignored_keys() -> None:
    counts = {"id": 3, "source": 1200, HOSTILE: 1, **{f"key{place:02}": 2 for place in range(20)}}
    html = render_preview(make_preview([], ignored_keys=counts))
    assert "with the number of rows that have them: source (1,200), id (3), key00 (2)" in html
    assert "and 3 more." in html
    assert "Ignored keys" not in render_preview(make_preview([]))


def test_labelled_rows_are_shown_with_their_labels() -> None:
    row = Row(line=3, tokens=(), texts=("good film", HOSTILE), labels=("positive",))
    preview = make_preview([], label_counts={"positive": 1, "x": 2})
    html = render_preview(preview.model_copy(update={"rows": (row,)}))
    assert "good film / " in html
    assert '<mark class="ts-learned">positive</mark>' in html
    assert HOSTILE not in html
    assert "Tokens" not in html


@pytest.mark.parametrize(
    "html",
    [
        render_preview(make_preview([], ignored_keys={HOSTILE: 1})),
        render_preview(make_preview([Token(text=HOSTILE, learned=True)])),
    ],
)
def test_hostile_content_of_rows_is_escaped(html: str) -> None:
    assert_escaped(html)
