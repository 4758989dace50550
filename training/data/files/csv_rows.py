"""Reader of CSV and TSV tables."""

import csv
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from io import TextIOWrapper
from typing import Any, BinaryIO

from training.data import row_limits
from training.data.faults import DataError, RowFault, show_names
from training.data.files.kinds import Record, find_quoting, find_separator


def read_table(
    file: BinaryIO, name: str, suffix: str, sample: bytes, start: int = 0
) -> Iterator[tuple[int, Record]]:
    """Yield the rows of a table as objects, each with the byte at which it begins.

    `sample` is the beginning of the file. With a `start`, a byte at which a row begins, the rows
    before are skipped; lines are then counted from there.
    """
    # This limit is process-wide; raising it admits nothing that was refused for a reason.
    csv.field_size_limit(row_limits.MAX_ROW_BYTES)
    begin = sample.decode("utf-8-sig", errors="replace").lstrip()
    separator = find_separator(suffix, begin.split("\n", 1)[0])
    quoting = find_quoting(begin, separator)
    header: list[str] | None = None
    for first in (0, start) if start else (0,):
        if first:
            file.seek(first)
        position = first or (len(BOM_UTF8) if sample.startswith(BOM_UTF8) else 0)
        text = TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        try:
            lines = _RowLines(text, position)
            reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
            if header is None:
                header = _read_header(name, reader, lines)
            if header is not None and first == start:
                yield from _read_cells(reader, lines, header)
        finally:
            text.detach()


class _RowLines:
    """The lines of a table, with a limit on the characters of a row.

    Without the limit, a quote that is not closed would make one row of the rest of the file.
    """

    def __init__(self, text: TextIOWrapper, position: int) -> None:
        self.position = position  # bytes of the file before the next line
        self._text = text
        self._num_characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(row_limits.MAX_ROW_BYTES + 1)
        self._num_characters += len(line)
        self.position += (
            len(line) if line.isascii() else len(line.encode("utf-8", "surrogateescape"))
        )
        if self._num_characters > row_limits.MAX_ROW_BYTES:
            raise row_limits.describe_endless()
        if not line:
            raise StopIteration
        return line

    def begin_row(self) -> None:
        """Start to count the characters of the next row."""
        self._num_characters = 0


def _read_header(name: str, reader: Any, lines: _RowLines) -> list[str] | None:
    """Read the header; None in a table without lines."""
    cells: list[str] | None = []
    while cells is not None and not cells:
        lines.begin_row()
        try:
            cells = next(reader, None)
        except RowFault as fault:  # the start of the next row is unknown
            raise DataError(f"{name}: the header is {fault}") from fault
        except csv.Error as exc:
            raise DataError(f"{name}: the header is not CSV ({exc})") from exc
    return None if cells is None else _check_header(name, cells)


def _read_cells(reader: Any, lines: _RowLines, header: list[str]) -> Iterator[tuple[int, Record]]:
    is_open = True
    while is_open:
        line, position = reader.line_num + 1, lines.position
        lines.begin_row()
        try:
            cells = next(reader, None)
        except RowFault as fault:  # the start of the next row is unknown
            yield position, (line, fault)
            return
        except csv.Error as exc:
            reason = RowFault("not CSV ({}); double the quotes within a quoted field", exc)
            yield position, (line, reason)
            continue
        if cells is None:
            is_open = False
        elif cells:
            yield position, (line, _make_record(header, cells))


def _check_header(name: str, cells: list[str]) -> list[str]:
    header = [cell.strip() for cell in cells]
    if "" in header:
        raise DataError(
            f"{name}: column {header.index('') + 1} of the header has no name; "
            f"found {show_names(header)}"
        )
    if twice := sorted(cell for cell, count in Counter(header).items() if count > 1):
        raise DataError(f"{name}: the header names {show_names(twice)} more than once")
    return header


def _make_record(header: list[str], cells: list[str]) -> Any:
    if len(cells) != len(header):
        return RowFault(
            "{} fields where the header has {}; quote fields that hold the separator",
            len(cells),
            len(header),
        )
    try:
        "".join(cells).encode()
    except UnicodeEncodeError as exc:
        byte = ord(exc.object[exc.start]) - 0xDC00
        return RowFault("not UTF-8 (byte {:#04x}); save the file as UTF-8", byte)
    return dict(zip(header, cells, strict=True))
