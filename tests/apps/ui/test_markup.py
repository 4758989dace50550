"""Parts of all pages as HTML, with hostile values escaped."""

import pytest

from apps.ui import markup
from tests.apps.ui.hostile import HOSTILE, assert_escaped


@pytest.mark.parametrize(
    "html",
    [
        markup.render_notice(HOSTILE, "error"),
        markup.render_badge(HOSTILE),
        markup.link_run(HOSTILE),
    ],
)
def test_hostile_content_is_escaped(html: str) -> None:
    assert_escaped(html)


@pytest.mark.parametrize(
    ("run", "shown"),
    [
        ("ftjob-18ebcb7cc8efc31d11568e8e", "ftjob-…568e8e"),
        ("mine", "mine"),
        ("my-run-2", "my-run-2"),
    ],
)
def test_run_is_linked_by_its_shortened_id(run: str, shown: str) -> None:
    html = markup.link_run(run)
    assert f'href="./runs?run={run}"' in html
    assert f'title="{run}"' in html
    assert html.endswith(f">{shown}</a>")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_are_formatted(seconds: float, words: str) -> None:
    assert markup.format_duration(seconds) == words


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("moment", "1 Mar 2026, 04:05 UTC"),
        ("clock", "04:05:09 UTC"),
        ("relative", "1 Mar 2026, 04:05 UTC"),
    ],
)
def test_moments_name_their_zone(kind: markup.MomentKind, shown: str) -> None:
    assert markup.render_moment(1772337909.7, kind) == (
        f'<time datetime="2026-03-01T04:05:09Z" data-moment="{kind}">{shown}</time>'
    )


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (-5, "just now"),
        (59, "just now"),
        (61, "1 min ago"),
        (7300, "2 h ago"),
        (90_000, "1 day ago"),
        (5 * 86_400, "5 days ago"),
        (15 * 86_400, "2 weeks ago"),
        (800 * 86_400, "2 years ago"),
    ],
)
def test_ages_have_one_unit(age_s: float, words: str) -> None:
    assert markup.format_age(age_s) == words
