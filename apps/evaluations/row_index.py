"""Index of the rows in a `rows.jsonl`, so that a page is read without the rows before it.

An index grows with its file, as far as the pages need: each line is parsed for it once. A replica
keeps the indexes of the most recently requested evaluations.
"""

import logging
import os
from array import array
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple, get_args

from apps.evaluations.evaluation_record import RowFilter, StoredRow, parse_stored_row
from apps.evaluations.evaluation_store import ROWS_NAME
from storage.layout import StorageLayout
from storage.regular_file import open_regular

logger = logging.getLogger(__name__)

_MAX_INDEXES = 32


class RowPage(NamedTuple):
    """Rows of an evaluation in the order of its file, and whether more of the filter follow."""

    rows: list[StoredRow]
    has_more: bool


class EvaluatedRowReader:
    """Reads pages of the rows that are done; safe to use from several threads."""

    def __init__(self, layout: StorageLayout) -> None:
        self._paths = layout.evaluations
        self._indexes: OrderedDict[Path, _RowIndex] = OrderedDict()
        self._lock = Lock()

    def read_page(
        self, evaluation_id: str, limit: int, after: str | None, chosen: RowFilter
    ) -> RowPage | None:
        """Return the rows of a filter that follow the row `after`, at most `limit`.

        Returns None if there is no row `after`.
        """
        path = self._paths.find(evaluation_id) / ROWS_NAME
        with self._lock:
            index = self._indexes.pop(path, None) or _RowIndex()
            self._indexes[path] = index
            if len(self._indexes) > _MAX_INDEXES:
                self._indexes.popitem(last=False)
        try:
            with index.lock, open_regular(path) as file:
                return index.read_page(file, limit, after, chosen)
        except FileNotFoundError:  # before the first row
            return RowPage([], has_more=False) if after is None else None


class _RowIndex:
    """Byte offsets of the rows in one file, their ids, and the rows of each filter."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._clear(0)

    def read_page(
        self, file: BinaryIO, limit: int, after: str | None, chosen: RowFilter
    ) -> RowPage | None:
        """Read a page, after the lines that it needs are indexed."""
        found = os.fstat(file.fileno())
        if found.st_ino != self._inode or found.st_size < self._end:  # the file was replaced
            self._clear(found.st_ino)
        file.seek(self._end)
        while after is not None and after not in self._places:
            if not self._add_line(file):
                return None
        numbers = self._chosen[chosen]
        first = 0 if after is None else bisect_right(numbers, self._places[after])
        while len(numbers) - first <= limit and self._add_line(file):
            pass
        page = numbers[first : first + limit]
        rows = [row for number in page if (row := self._read(file, number)) is not None]
        return RowPage(rows, has_more=len(numbers) > first + limit)

    def _add_line(self, file: BinaryIO) -> bool:
        """Index the next line, at which the file is; return whether it was complete."""
        line = file.readline()
        if not line.endswith(b"\n"):  # being written, or cut by a crash
            return False
        row = parse_stored_row(line)
        if row is not None:
            self._places.setdefault(row.id, len(self._offsets))
            for name, numbers in self._chosen.items():
                if row.matches(name):
                    numbers.append(len(self._offsets))
            self._offsets.append(self._end)
        elif line.strip():
            logger.warning("a line of the rows of an evaluation is damaged and is left out")
        self._end += len(line)
        return True

    def _read(self, file: BinaryIO, number: int) -> StoredRow | None:
        file.seek(self._offsets[number])
        return parse_stored_row(file.readline())

    def _clear(self, inode: int) -> None:
        self._inode = inode
        self._end = 0
        self._offsets = array("q")
        self._places: dict[str, int] = {}
        self._chosen = {name: array("q") for name in get_args(RowFilter)}
