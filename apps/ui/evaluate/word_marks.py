"""Words of an answer that the expected one does not have, marked.

Both are compared by a longest common subsequence of their words, in upper or lower case, as for
ROUGE-L (Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries").
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from typing import NamedTuple

MAX_WORDS = 400
"""Words of an answer that are compared: the time grows with their square."""
# As the API counts words: runs of letters and digits, each CJK character alone.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")


class MarkedAnswer(NamedTuple):
    """An answer as HTML, and how many words of the expected one it lacks; None if unknown."""

    html: str
    num_missing: int | None


@lru_cache(maxsize=2048)
def mark_answer(expected: str, text: str) -> MarkedAnswer:
    """Mark the words of an answer that the expected one does not have at their place.

    A long answer is not compared.
    """
    found = [*_WORD.finditer(text)]
    wanted = [word[0].casefold() for word in _WORD.finditer(expected)]
    if max(len(found), len(wanted)) > MAX_WORDS:
        return MarkedAnswer(escape(text), None)
    is_common = find_common([word[0].casefold() for word in found], wanted)
    parts, end = [], 0
    for begin, last in _join_neighbours(found, is_common):
        parts += [escape(text[end:begin]), f"<mark>{escape(text[begin:last])}</mark>"]
        end = last
    return MarkedAnswer("".join([*parts, escape(text[end:])]), len(wanted) - sum(is_common))


def _join_neighbours(
    words: Sequence[re.Match[str]], is_common: Sequence[bool]
) -> list[tuple[int, int]]:
    """Return where marks begin and end: one for all neighbours that are not common."""
    marks: list[tuple[int, int]] = []
    was_common = True
    for word, is_same in zip(words, is_common, strict=True):
        if not is_same and was_common:
            marks.append(word.span())
        elif not is_same:
            marks[-1] = (marks[-1][0], word.end())
        was_common = is_same
    return marks


def find_common(words: Sequence[str], others: Sequence[str]) -> list[bool]:
    """Return which of the words are in a longest common subsequence with the others."""
    # lengths[i][j] is that of the longest one of words[i:] and others[j:].
    lengths = [[0] * (len(others) + 1) for _ in range(len(words) + 1)]
    for i in reversed(range(len(words))):
        row, below = lengths[i], lengths[i + 1]
        for j in reversed(range(len(others))):
            row[j] = below[j + 1] + 1 if words[i] == others[j] else max(below[j], row[j + 1])
    is_common, j = [], 0
    for i, word in enumerate(words):
        while j < len(others) and word != others[j] and lengths[i][j + 1] == lengths[i][j]:
            j += 1
        is_same = j < len(others) and word == others[j]
        is_common.append(is_same)
        j += is_same
    return is_common
