"""Limits on the size of a row, so that one row takes bounded memory and time.

Reading a row takes up to 30 bytes of memory for each of its bytes. Tokenising its text takes up to
450 bytes for each byte, so the text has a lower limit.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from training.data.faults import RowFault

MAX_ROW_BYTES = 4 << 20
"""Size of a row in its file, including columns that are not learned from."""
MAX_BINARY_ROW_BYTES = 32 << 20
"""The same for rows of Parquet and Arrow files with images, whose bytes become base64 text."""
MAX_TEXT_BYTES = 750_000
"""Size in UTF-8 of a row's messages and tools, or of its text."""
MAX_PROTECTED_BYTES = 400_000
"""The same if control tokens in it are encoded as text: the tokenizer then needs twice as much."""
MAX_MESSAGES = 512
"""As in a chat request. Finding a message in the text requires rendering those before it."""
MAX_TOOLS = 128
MAX_DEPTH = 64
"""Levels of lists and objects in its messages and tools."""
_VALUE_BYTES = 4  # of a value that is not a string: about that of its JSON punctuation


class Measure(NamedTuple):
    """The size of a value of JSON types, about that of its JSON text, and its nesting depth."""

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
    """Raise `RowFault` for a row with more bytes of text than allowed."""
    if size_bytes > most:
        raise RowFault(
            f"{what} {{:,}} bytes, expected at most {{:,}}; split it into several rows",
            size_bytes,
            most,
        )


def check_count(count: int, most: int, what: str, advice: str) -> None:
    """Raise `RowFault` for a row with a larger count of something than allowed."""
    if count > most:
        raise RowFault(f"it has {{:,}} {what}, expected at most {{:,}}; {advice}", count, most)


def describe_endless(limit: int | None = None) -> RowFault:
    """Return the fault of a row that is larger than a limit, by default that of all files."""
    return RowFault("longer than {:,} bytes, the limit for one row", limit or MAX_ROW_BYTES)


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
