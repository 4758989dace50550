"""Regular expressions for any of many strings, whose speed hardly depends on their number."""

import os
import re
from collections.abc import Iterable
from itertools import groupby

NOTHING = re.compile(r"(?!)")
"""Matches nowhere."""


def match_any(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches the longest of `words` at each position.

    In a plain alternation, Python tries word by word at each position: a megabyte of `<|` takes
    35 s with 5,000 tokens that begin with it, and holds the GIL. Here words share prefixes, as in a
    trie.
    """
    distinct = sorted({word for word in words if word})
    if not distinct:
        return NOTHING
    try:
        return re.compile(_join(distinct))
    except RecursionError:  # thousands of words, each a prefix of the next
        longest_first = sorted(distinct, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))


def match_first_characters(words: Iterable[str]) -> str:
    """Return a pattern that matches the first character of each occurrence of `words`."""
    branches = []
    groups = groupby(sorted({word for word in words if word}), key=lambda word: word[0])
    for first, group in groups:
        rests = [word[1:] for word in group]
        ahead = "" if "" in rests else f"(?={match_any(rests).pattern})"
        branches.append(re.escape(first) + ahead)
    return "|".join(branches) or NOTHING.pattern


def _join(words: list[str]) -> str:
    """Return the trie-like pattern of sorted, distinct words."""
    shared = os.path.commonprefix([words[0], words[-1]])  # noqa: RUF071 - by characters
    rests = [word[len(shared) :] for word in words]
    is_word = rests[0] == ""  # the empty string sorts first
    groups = groupby(rests[is_word:], key=lambda rest: rest[0])
    branches = [_join(list(group)) for _, group in groups]
    if not branches:
        return re.escape(shared)
    optional = "?" if is_word else ""
    return f"{re.escape(shared)}(?:{'|'.join(branches)}){optional}"
