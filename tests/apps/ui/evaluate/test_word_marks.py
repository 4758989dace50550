"""Words of an answer that differ from the expected one."""

import time

import pytest

from apps.ui.evaluate.word_marks import MAX_WORDS, find_common, mark_answer
from tests.apps.ui.hostile import HOSTILE, assert_escaped


@pytest.mark.parametrize(
    ("expected", "text", "html", "num_missing"),
    [
        ("It opens at nine.", "it opens at NINE", "it opens at NINE", 0),
        ("It opens at nine.", "It opens at ten.", "It opens at <mark>ten</mark>.", 1),
        ("at nine", "It opens late at nine", "<mark>It opens late</mark> at nine", 0),
        ("a b c", "c b a", "c <mark>b a</mark>", 2),
        ("yes, it is", "yes", "yes", 2),
        ("東京です", "大阪です", "<mark>大阪</mark>です", 2),
        ("", "more", "<mark>more</mark>", 0),
        ("some", "", "", 1),
    ],
)
def test_differing_words_are_marked(expected: str, text: str, html: str, num_missing: int) -> None:
    found = mark_answer(expected, text)
    assert found.num_missing == num_missing
    assert found.html == html


def test_common_words_are_a_longest_subsequence() -> None:
    assert find_common(["a", "x", "b", "c"], ["a", "b", "y", "c"]) == [True, False, True, True]
    assert sum(find_common(list("abcbdab"), list("bdcaba"))) == 4  # Cormen et al., section 15.4
    assert find_common([], ["a"]) == []


def test_long_answer_is_not_compared() -> None:
    begin = time.perf_counter()
    assert mark_answer("word " * MAX_WORDS, "word " * 100_000).num_missing is None
    assert time.perf_counter() - begin < 5
    assert mark_answer("word " * MAX_WORDS, "word " * MAX_WORDS).num_missing == 0


def test_hostile_answer_is_escaped() -> None:
    for expected in ("", HOSTILE, "img src"):
        assert_escaped(mark_answer(expected, HOSTILE).html)
