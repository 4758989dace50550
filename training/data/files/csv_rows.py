"""Reader of CSV and TSV tables."""

import csv
from collections import Counter
from collections.abc import Iterator
from io import TextIOWrapper
from typing import Any, BinaryIO

from training.data import row_limits
from training.data.faults import DataError, RowFault, show_names
from training.data.files.kinds import Record, find_quoting, find_separator


def read_table(file: BinaryIO, name: str, suffix: str, sample: bytes) -> Iterator[Record]:
    """Yield the rows of a table as objects; `sample` is the beginning of the file."""
    # This limit is process-wide; raising it admits nothing that was refused for a reason.
    csv.field_size_limit(row_limits.MAX_ROW_BYTES)
    begin = sample.decode("utf-8-sig", errors="replace").lstrip()
    separator = find_separator(suffix, begin.split("\n", 1)[0])
    text = TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    try:
        lines = _RowLines(text)
        reader = csv.reader(
            lines, delimiter=separator, quoting=find_quoting(begin, separator), strict=True
        )
        yield from _read_cells(name, reader, lines)
    finally:
        text.detach()


class _RowLines:
    """The lines of a table, with a limit on the characters of a row.

    Without the limit, a quote that is not closed would make one row of the rest of the file.
    """

    def __init__(self, text: TextIOWrapper) -> None:
        self._text = text
        self._num_characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(row_limits.MAX_ROW_BYTES + 1)
        self._num_characters += len(line)
        if self._num_characters > row_limits.MAX_ROW_BYTES:
            raise row_limits.describe_endless()
        if not line:
            raise StopIteration
        return line

    def begin_row(self) -> None:
        """Start to count the characters of the next row."""
        self._num_characters = 0


def _read_cells(name: str, reader: Any, lines: _RowLines) -> Iterator[Record]:
    header: list[str] | None = None
    is_open = True
    while is_open:
        line = reader.line_num + 1
        lines.begin_row()
        try:
            cells = next(reader, None)
        except RowFault as fault:  # the start of the next row is unknown
            if header is None:
                raise DataError(f"{name}: the header is {fault}") from fault
            yield line, fault
            return
        except csv.Error as exc:
            if header is None:
                raise DataError(f"{name}: the header is not CSV ({exc})") from exc
            yield line, RowFault("not CSV ({}); double the quotes within a quoted field", exc)
            continue
        if cells is None:
            is_open = False
        elif header is None:
            header = _check_header(name, cells) if cells else None
        elif cells:
            yield line, _make_record(header, cells)


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
