r"""Checks that the regular expressions of a tokenizer match in linear time.

The library `tokenizers` matches with backtracking: the time of `(a|a)*b` doubles with every `a`,
and that of ` +x` is quadratic in a run of spaces, so that one message can block a process for
minutes. An imported model may only have patterns that this module recognizes as linear:

- alternatives that repeat a part without limit only if nothing after it can fail, such as
  ` ?\p{L}+` or `\p{N}{1,3}`;
- sequences of alternatives in which the next one matches what a failed one has scanned, as in the
  tokenizers of GPT-4, Llama 3, Qwen, DeepSeek and others;
- some whole patterns of published models.
"""

import re
from itertools import product

_MAX_CHARACTERS = 4_096
_MAX_ALTERNATIVES = 32
_MAX_PARTS = 32  # of one alternative; each is a step at each position of a text
_MAX_CHOICES = 64
"""Most ways in which the bounded parts of one alternative may match."""

_CLASS_ITEM = r"\\[sSdDwWrnt]|\\[pP]\{\^?\w+\}|\\[^\w\s]|[^\\\[\]]"
_ATOM = (
    r"(?:\\[sSdDwWrnt]|\\[pP]\{\^?\w+\}|\\[^\w\s]"
    rf"|\[\^?(?:{_CLASS_ITEM}|\[\^?(?:{_CLASS_ITEM})+\])+\]"
    r"|[^\\\[\](){}?*+|^$])"
)
_ATOMS = re.compile(_ATOM)
_PART = re.compile(
    rf"(?P<group>\((?:\?i?:)?(?P<inner>{_ATOM}+(?:\|{_ATOM}+)*)\)|{_ATOM})"
    r"(?P<times>\{(?P<low>\d{1,2})(?:(?P<open>,)(?P<high>\d{1,2})?)?\}|[*+]\+?|\?\+?)?"
    r"(?![?*+{])"
)
_MAX_TIMES = 16

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _list_cased_words() -> list[tuple[str, ...]]:
    """List the pairs of alternatives for cased words; the second matches where the first fails."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return [
        (
            f"{before}[{_UPPER}{without}]*[{_LOWER}{without}]+{after}",
            f"{before}[{_UPPER}{without}]+[{_LOWER}{without}]*{after}",
        )
        for without, after in product(("", r"&&[^\p{Han}]"), ("", _CONTRACTION))
    ]


_SPACES = (r"\s+(?!\S)", r"\s+")
_LINE_ENDS = (r"\s*[\r\n]+", "\\s*[\r\n]+", r"\s*[\r\n]", "\\s*[\r\n]")
_SEQUENCES = [
    *_list_cased_words(),
    *product(_LINE_ENDS, _SPACES),
    (_SPACES[0],),
    # EXAONE: words of letters and marks, with single spaces between them.
    (r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",),
]
_WHOLE = frozenset(
    {
        r"(?:\r?\n)+(?!\r?\n)",  # Laguna
        r"(?<!\s)\s+$",
        r"^▁+$",  # a text has few line starts and ends
        r"<sentinel:[0-9]+>",  # Chameleon
        r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    }
)

FASTER_PATTERNS = {r"\s+$": r"(?<!\s)\s+$"}
"""Patterns of DeepSeek with quadratic time in a run of spaces, and equivalent linear patterns.

The first match in a run of spaces begins at the start of the run, and there is no second match.
"""


def check_pattern(pattern: str) -> None:
    """Raise `ValueError` for a pattern that is not known to match in linear time."""
    if pattern in _WHOLE:
        return
    if len(pattern) > _MAX_CHARACTERS:
        raise ValueError(
            f"the tokenizer has a regular expression of {len(pattern):,} characters; expected at "
            f"most {_MAX_CHARACTERS:,}"
        )
    alternatives = _split_alternatives(pattern)
    if len(alternatives) > _MAX_ALTERNATIVES:
        raise ValueError(
            f"the tokenizer has a regular expression of {len(alternatives):,} alternatives; "
            f"expected at most {_MAX_ALTERNATIVES}"
        )
    place = 0
    while place < len(alternatives):
        num_known = _count_known(alternatives[place:])
        if not num_known and not _is_linear(alternatives[place]):
            raise ValueError(
                f"the tokenizer has the regular expression {pattern[:200]!r}, whose part "
                f"{alternatives[place][:100]!r} may take far longer for some texts than for "
                "others; expected one that is known to take time in proportion to the text, such "
                "as those of GPT-2, Llama 3, Qwen or DeepSeek-V3"
            )
        place += num_known or 1


def _count_known(alternatives: list[str]) -> int:
    """Return the length of the known sequence at the start of `alternatives`, or 0."""
    for sequence in _SEQUENCES:
        if tuple(alternatives[: len(sequence)]) == sequence:
            return len(sequence)
    return 0


def _split_alternatives(pattern: str) -> list[str]:
    """Split a pattern at each `|` outside of groups and character classes."""
    alternatives, depth_class, depth_group, start, place = [], 0, 0, 0, 0
    while place < len(pattern):
        character = pattern[place]
        if character == "\\":
            place += 1
        elif character == "[":
            depth_class += 1
        elif character == "]":
            depth_class -= 1
        elif not depth_class and character in "()":
            depth_group += 1 if character == "(" else -1
        elif not depth_class and not depth_group and character == "|":
            alternatives.append(pattern[start:place])
            start = place + 1
        place += 1
    return [*alternatives, pattern[start:]]


def _is_linear(alternative: str) -> bool:
    """Return whether an alternative takes few steps, or cannot fail after an unbounded part."""
    place, num_parts, num_choices, is_repeated = 0, 0, 1, False
    while place < len(alternative):
        part = _PART.match(alternative, place)
        if part is None:
            return False
        place = part.end()
        num_parts += len(_ATOMS.findall(part["inner"] or ".")) * int(
            part["high"] or part["low"] or 1
        )
        ways = _count_ways(part)
        is_optional = part["times"] is not None and part["times"][0] in "?*"
        if ways is None:
            if part["inner"] is not None:  # a repeated group can match the same text in two ways
                return False
            if is_repeated and not is_optional:
                return False
            is_repeated = True
        elif is_repeated and not is_optional:
            return False
        else:
            num_choices *= ways
    return num_choices <= _MAX_CHOICES and num_parts <= _MAX_PARTS


def _count_ways(part: re.Match[str]) -> int | None:
    """Return the number of ways a part may match at one position; None if it is unbounded."""
    times = part["times"]
    own = 1 if part["inner"] is None else part["inner"].count("|") + 1
    if times is None:
        return own
    if times[0] == "?":
        return own + 1
    if times[0] in "*+":
        return None
    low, high = int(part["low"]), int(part["high"] or part["low"])
    if part["open"] and part["high"] is None:
        return None if low <= _MAX_TIMES else _MAX_CHOICES + 1
    if part["inner"] is not None or not low <= high <= _MAX_TIMES:
        return _MAX_CHOICES + 1
    return high - low + 1
