"""Faults of rows: the fault of one row, and all faults of a file grouped by kind."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from system.utf8 import clean_text

RowRole = Literal["training", "validation"]

MAX_LINES_SHOWN = 20
_MAX_VALUE_CHARACTERS = 80
_MAX_NAMES_SHOWN = 20
_MAX_NAMES_COUNTED = 64
OTHER_KEYS = "(other keys)"
"""The name under which rows with keys beyond the limit of counted names are counted."""


class DataError(ValueError):
    """Rows cannot be learned from; the message names the file, the lines and the reasons.

    `role` is the use of these rows in the spec, once it is known.
    """

    role: "RowRole | None" = None


class ChangedRowsError(RuntimeError):
    """A file has changed since its rows were checked."""


class RowFault(ValueError):  # noqa: N818 - more often passed as a value than raised
    """Why one row cannot be used: a pattern, which is the kind of fault, and its values."""

    def __init__(self, pattern: str, *values: object) -> None:
        super().__init__(pattern.format(*values))
        self.kind = pattern


OnFault = Callable[[int, int, RowFault], None]


@dataclass
class _Kind:
    first: str
    count: int = 0
    lines: list[int] = field(default_factory=list)


class RowFaultLog:
    """The faults of one source of rows by kind; its size does not grow with their number.

    `name` is the name of the source, `unit` the unit of its row numbers: 'line' or 'row'.
    `on_fault` is called with the line, the number and the fault of each row.
    """

    def __init__(self, name: str, unit: str, on_fault: OnFault | None = None) -> None:
        self._name = name
        self._unit = unit
        self._on_fault = on_fault
        self._kinds: dict[str, _Kind] = {}

    def __len__(self) -> int:
        return sum(kind.count for kind in self._kinds.values())

    def add(self, line: int, fault: RowFault, number: int = 0) -> None:
        """Record the fault of one row; `number` is its number in the source."""
        if self._on_fault is not None:
            self._on_fault(line, number, fault)
        kind = self._kinds.setdefault(fault.kind, _Kind(str(fault)))
        kind.count += 1
        if len(kind.lines) < MAX_LINES_SHOWN:
            kind.lines.append(line)

    def add_log(self, later: "RowFaultLog") -> None:
        """Add the faults of the rows that follow these in the source."""
        for name, found in later._kinds.items():
            kind = self._kinds.setdefault(name, _Kind(found.first))
            kind.count += found.count
            kind.lines = (kind.lines + found.lines)[:MAX_LINES_SHOWN]

    def raise_if_any(self, num_rows: int) -> None:
        """Raise a `DataError` that describes every kind of fault, the most frequent first."""
        if not self._kinds:
            return
        kinds = sorted(self._kinds.values(), key=lambda kind: (-kind.count, kind.lines[0]))
        reasons = "; ".join(self._describe(kind) for kind in kinds)
        raise DataError(f"{self._name}: {len(self)} of {num_rows} rows cannot be used: {reasons}")

    def _describe(self, kind: _Kind) -> str:
        rows = "1 row" if kind.count == 1 else f"{kind.count} rows"
        return f"{rows}: {kind.first} ({describe_lines(kind.lines, kind.count, self._unit)})"


class IgnoredKeys:
    """Counts of rows by each of their ignored keys; its size does not grow with the rows."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, names: Iterable[str], num_rows: int = 1) -> None:
        """Count rows that have keys of these names."""
        for name in {self._choose_name(name) for name in names}:
            self.counts[name] = self.counts.get(name, 0) + num_rows

    def _choose_name(self, name: str) -> str:
        shown = clean_text(name[:_MAX_VALUE_CHARACTERS])
        is_known = shown in self.counts or len(self.counts) < _MAX_NAMES_COUNTED
        return shown if is_known else OTHER_KEYS


def describe_ignored(counts: Mapping[str, int]) -> str:
    """Name ignored keys with the number of rows that have them, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name!r} ({count:,})" for name, count in ordered[:_MAX_NAMES_SHOWN]]
    more = len(ordered) - _MAX_NAMES_SHOWN
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def describe_lines(lines: list[int], count: int, unit: str = "line") -> str:
    """Name lines, as in 'lines 3, 9 and 4 more', where `lines` are the first of `count`."""
    if count == 1:
        return f"{unit} {lines[0]}"
    more = f" and {count - len(lines)} more" if count > len(lines) else ""
    return f"{unit}s {', '.join(map(str, lines))}{more}"


def show_names(names: Iterable[str]) -> str:
    """Quote the names found, at most 20 of them, each truncated to a readable length."""
    found = list(names)
    shown = ", ".join(show_value(name) for name in found[:_MAX_NAMES_SHOWN])
    more = len(found) - _MAX_NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def show_value(value: Any) -> str:
    """Quote the value found as JSON, truncated to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = type(value).__name__
    text = clean_text(text)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"
