"""Metrics with known values."""

import math
import random
import tracemalloc
from collections.abc import Sequence

import pytest

from apps.evaluations.text_metrics import (
    compute_perplexity,
    compute_rouge_l,
    contains_expected,
    matches_exactly,
    measure_common_subsequence,
    split_words,
)


@pytest.mark.parametrize(
    ("answer", "expected", "is_equal"),
    [
        ("Twelve.", "Twelve.", True),
        ("  Twelve\n loaves. ", "Twelve loaves.", True),
        ("cafe\u0301", "caf\u00e9", True),  # composed and decomposed
        ("twelve.", "Twelve.", False),
        ("Twelve", "Twelve.", False),
        ("", "", True),
    ],
)
def test_exact_match_ignores_white_space_and_composition(
    answer: str, expected: str, is_equal: bool
) -> None:
    assert matches_exactly(answer, expected) == is_equal


def test_contains_ignores_case_and_white_space() -> None:
    assert contains_expected("It is TWELVE\nloaves, I think.", "twelve  loaves")
    assert contains_expected("STRASSE", "straße")
    assert not contains_expected("twelve", "twelve loaves")


def test_long_expected_answer_takes_little_memory() -> None:
    expected = " ".join(map(str, range(30_000)))
    tracemalloc.start()
    assert compute_rouge_l("3 2 29999", expected) == pytest.approx(2 * 2 / 30_003)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20e6


def test_words_are_runs_of_letters_and_digits_and_single_cjk_characters() -> None:
    assert split_words("It's 12 o'clock_now.") == ["it", "s", "12", "o", "clock", "now"]
    assert split_words("我有2只cat") == ["我", "有", "2", "只", "cat"]
    assert split_words("こんにちは") == list("こんにちは")
    assert split_words("…!") == []


@pytest.mark.parametrize(
    ("answer", "expected", "value"),
    [
        # Lin 2004, section 3.1: with "police killed the gunman" as the reference, the common
        # subsequences have 3, 2 and 2 words of 4.
        ("police kill the gunman", "police killed the gunman", 0.75),
        ("the gunman kill police", "police killed the gunman", 0.5),
        ("the gunman police killed", "police killed the gunman", 0.5),
        # 2 of 4 words found, all 2 of the expected: F = 2·2 / (4 + 2)
        ("It is 12 loaves", "12 loaves", 2 / 3),
        ("我喜欢猫", "我喜欢狗", 0.75),
        ("", "", 1.0),
        ("", "twelve", 0.0),
        ("no", "twelve", 0.0),
    ],
)
def test_rouge_l_has_known_values(answer: str, expected: str, value: float) -> None:
    assert compute_rouge_l(answer, expected) == pytest.approx(value)


def measure_by_table(one: Sequence[str], other: Sequence[str]) -> int:
    """Measure a longest common subsequence as textbooks do."""
    before = [0] * (len(other) + 1)
    for word in one:
        row = [0]
        for place, found in enumerate(other):
            row.append(before[place] + 1 if word == found else max(row[place], before[place + 1]))
        before = row
    return before[-1]


def test_common_subsequence_equals_that_of_textbook_algorithm() -> None:
    numbers = random.Random(5)
    for _ in range(300):
        one, other = (
            [numbers.choice("abcd") for _ in range(numbers.randrange(80))] for _ in range(2)
        )
        assert measure_common_subsequence(one, other) == measure_by_table(one, other)


def test_perplexity_is_exponential_of_mean_loss() -> None:
    assert compute_perplexity(3 * math.log(7), 3) == pytest.approx(7)
    assert compute_perplexity(0.0, 5) == 1.0
    assert compute_perplexity(0.0, 0) is None
    assert math.isfinite(compute_perplexity(1e6, 1) or math.inf)
