"""Metrics that compare an answer with the expected one, and the perplexity of expected answers."""

import math
import re
import unicodedata
from collections.abc import Sequence

_CJK = (
    r"\u2e80-\u2fdf\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[^\W_])+")
"""A character of Chinese, Japanese or Korean, or a run of other letters and digits."""
_MAX_LOSS = 700.0  # its exponential is about the largest float


def matches_exactly(answer: str, expected: str) -> bool:
    """Return whether two texts are equal in Unicode's form NFC, with white space collapsed."""
    return _normalise(answer) == _normalise(expected)


def contains_expected(answer: str, expected: str) -> bool:
    """Return whether a text contains another one in any case, normalised as for equality."""
    return _normalise(expected).casefold() in _normalise(answer).casefold()


def compute_rouge_l(answer: str, expected: str) -> float:
    """Return the F-measure of the longest common subsequence of words, between 0 and 1.

    Two texts without words are equal, with 1. Source: Lin 2004, "ROUGE: A Package for Automatic
    Evaluation of Summaries", section 3, with equal weights of precision and recall.
    """
    found, wanted = split_words(answer), split_words(expected)
    if not found and not wanted:
        return 1.0
    return 2 * measure_common_subsequence(found, wanted) / (len(found) + len(wanted))


def compute_perplexity(loss_sum: float, num_tokens: int) -> float | None:
    """Return the exponential of the mean loss per token in nats; None for no tokens.

    The result is always finite.
    """
    return math.exp(min(loss_sum / num_tokens, _MAX_LOSS)) if num_tokens else None


def split_words(text: str) -> list[str]:
    """Split a text into its words in lower case; each CJK character is a word."""
    return _WORD.findall(unicodedata.normalize("NFC", text).casefold())


def measure_common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two lists of words.

    Takes n operations on numbers of m bits, where m is the length of the shorter list, and m * m
    bits of memory at most. Source: Hyyrö 2004, "Bit-parallel LCS-length computation revisited".
    """
    shorter, longer = sorted((one, other), key=len)
    places: dict[str, int] = {}
    for place, word in enumerate(shorter):
        places[word] = places.get(word, 0) | 1 << place
    everywhere = (1 << len(shorter)) - 1
    unmatched = everywhere
    for word in longer:
        matched = unmatched & places.get(word, 0)
        unmatched = ((unmatched + matched) | (unmatched - matched)) & everywhere
    return len(shorter) - unmatched.bit_count()


def _normalise(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
