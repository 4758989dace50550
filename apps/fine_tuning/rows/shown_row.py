"""One row of a file as readable text: the turns of a chat, or the columns of a table."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypedDict

from system.utf8 import clean_text
from training.data.faults import RowFault

MAX_VALUES = 40
"""Most turns and columns of a row that are shown."""
_MAX_NAME_CHARACTERS = 80
_CHAT_KEYS = ("messages", "conversations", "chosen", "rejected")


class RowPlace(NamedTuple):
    """Where a row is: its number and line, from 1, and the byte at which it begins, or 0."""

    number: int
    line: int
    position: int

    @property
    def id(self) -> str:
        """The id by which the next page begins after the row."""
        return "-".join(map(str, self))


class RowValueObject(TypedDict):
    """A turn or a column: its name, the beginning of its text, and how long the text is."""

    name: str
    kind: str
    text: str
    num_characters: int


class ShownRowObject(TypedDict):
    """A row as the API shows it; `fault` is why it cannot be read."""

    id: str
    object: str
    number: int
    line: int
    values: list[RowValueObject]
    num_values: int
    fault: str | None


def describe_row(place: RowPlace, record: object, max_characters: int) -> ShownRowObject:
    """Describe a record; texts together have at most `max_characters`."""
    values: list[RowValueObject] = []
    num_values, left = 0, max_characters
    fault = str(record) if isinstance(record, RowFault) else None
    for kind, name, text in () if fault else list_values(record):
        num_values += 1
        if len(values) < MAX_VALUES:
            shown = clean_text(text[:left])
            left -= len(shown)
            values.append(
                {
                    "name": clean_text(name[:_MAX_NAME_CHARACTERS]),
                    "kind": kind,
                    "text": shown,
                    "num_characters": len(text),
                }
            )
    return {
        "id": place.id,
        "object": "file.row",
        "number": place.number,
        "line": place.line,
        "values": values,
        "num_values": num_values,
        "fault": fault,
    }


def list_values(record: object) -> Iterator[tuple[str, str, str]]:
    """Yield the kind ('turn' or 'column'), the name and the text of each part of a record."""
    if not isinstance(record, Mapping):
        yield "column", "", _write(record)
        return
    for name, value in record.items():
        if name in _CHAT_KEYS and _is_chat(value):
            yield from map(_read_turn, value)
        elif value is not None and value != "":
            yield "column", str(name), _write(value)


def contains(record: object, text: str) -> bool:
    """Return whether a text, in lower case, is in one of the texts of a record in any case."""
    return any(text in value.casefold() for _, _, value in list_values(record))


def _is_chat(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(turn, Mapping) and ("role" in turn or "from" in turn) for turn in value
    )


def _read_turn(turn: Mapping[str, Any]) -> tuple[str, str, str]:
    role = turn.get("role", turn.get("from"))
    content = turn.get("content", turn.get("value"))
    calls = turn.get("tool_calls")
    parts = [_write(content)] if content is not None else []
    parts += [_write(calls)] if calls else []
    return "turn", str(role), "\n".join(parts)


def _write(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return type(value).__name__
