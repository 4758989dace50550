"""Readers of JSONL and JSON arrays."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from training.data import row_limits
from training.data.faults import RowFault, show_value
from training.data.files.json_array import describe_json_error, read_array
from training.data.files.kinds import Record


def read_json_lines(file: BinaryIO) -> Iterator[Record]:
    """Yield the objects of JSONL; blank lines are skipped."""
    number = 0
    while line := file.readline(row_limits.MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > row_limits.MAX_ROW_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(row_limits.MAX_ROW_BYTES)
            yield number, row_limits.describe_endless()
        elif line.strip():
            yield number, parse_line(line)


def parse_line(line: bytes) -> Any:
    """Parse one line; returns the `RowFault` of one that is not JSON."""
    try:
        return json.loads(line.decode(), object_pairs_hook=make_object)
    except UnicodeDecodeError as exc:
        return RowFault("not UTF-8 (byte {:#04x} at place {})", line[exc.start], exc.start + 1)
    except json.JSONDecodeError as exc:
        return RowFault("not JSON ({}, column {})", describe_json_error(exc), exc.colno)
    except RowFault as exc:
        return exc
    except (ValueError, RecursionError) as exc:  # numbers or nesting beyond Python's limits
        return RowFault("cannot be read ({})", exc)


def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object; raises `RowFault` for a duplicate key, so that no value is lost."""
    record = dict(pairs)
    if len(record) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise RowFault("duplicate key {}", show_value(twice))
    return record


def read_json_array(file: BinaryIO) -> Iterator[Record]:
    """Yield the elements of a JSON array."""
    return read_array(file, make_object, row_limits.MAX_ROW_BYTES)
