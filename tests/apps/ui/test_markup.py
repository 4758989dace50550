"""Parts of all pages as HTML, with hostile values escaped."""

import pytest

from apps.ui import markup
from tests.apps.ui.hostile import HOSTILE, assert_escaped


@pytest.mark.parametrize(
    "html", [markup.render_notice(HOSTILE, "error"), markup.render_badge(HOSTILE)]
)
def test_hostile_content_is_escaped(html: str) -> None:
    assert_escaped(html)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_are_formatted(seconds: float, words: str) -> None:
    assert markup.format_duration(seconds) == words
