"""How large a row may be, so that one row takes bounded memory and time.

Reading a row takes up to 30 bytes of memory for each of its bytes. Tokenising its text takes up to
450 bytes for each byte, so the text has a lower limit.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from training.data.faults import RowFault

MAX_ROW_BYTES = 4 << 20
"""As it stands in the file, with the columns that are not learned from."""
MAX_TEXT_BYTES = 750_000
"""Of its messages and tools, or of its text, in UTF-8."""
MAX_PROTECTED_BYTES = 400_000
"""The same where control tokens in it are encoded as text: the tokenizer takes twice as much."""
MAX_MESSAGES = 512
"""As in a chat request. Finding one message in the text takes renderings of those before it."""
MAX_TOOLS = 128
MAX_DEPTH = 64
"""Levels of lists and objects in its messages and tools."""
_VALUE_BYTES = 4  # of a value that is no string: about its marks in JSON


class Measure(NamedTuple):
    """The size of a value of JSON's types, about that of its JSON, and how deep it is nested."""

    size_bytes: int
    depth: int


def measure_value(value: Any) -> Measure:
    """Measure a value, without recursion."""
    open_values: list[Iterator[Any]] = [iter((value,))]
    size_bytes = depth = 0
    while open_values:
        for item in open_values[-1]:
            if isinstance(item, str):
                size_bytes += _count_bytes(item)
                continue
            size_bytes += _VALUE_BYTES
            if isinstance(item, Mapping):
                size_bytes += sum(_count_bytes(str(key)) for key in item)
                open_values.append(iter(item.values()))
            elif isinstance(item, list | tuple):
                open_values.append(iter(item))
            else:
                continue
            depth = max(depth, len(open_values) - 1)
            break
        else:
            open_values.pop()
    return Measure(size_bytes, depth)


def check_size(what: str, size_bytes: int, most: int) -> None:
    """Raise `RowFault` for a row with more bytes of text than it may have."""
    if size_bytes > most:
        raise RowFault(
            f"{what} {{:,}} bytes, expected at most {{:,}}; split it into several rows",
            size_bytes,
            most,
        )


def check_count(count: int, most: int, what: str, advice: str) -> None:
    """Raise `RowFault` for a row with more of something than it may have."""
    if count > most:
        raise RowFault(f"it has {{:,}} {what}, expected at most {{:,}}; {advice}", count, most)


def describe_endless() -> RowFault:
    """Return the fault of a row that is longer in its file than the limit."""
    return RowFault("longer than {:,} bytes, the limit for one row", MAX_ROW_BYTES)


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
