"""Pages of the rows of a file, with a search; each call reads for a few seconds at most.

The id of a row has its number, its line and its place in the file, so that the next page begins
there without reading the rows before it. Only compressed files, JSON arrays and archives are read
from their beginning.
"""

import re
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from apps.errors import InvalidInputError
from apps.file_store import FileStore
from apps.fine_tuning.rows.shown_row import RowPlace, ShownRowObject, contains, describe_row
from apps.fine_tuning.rows.timed_file import RowsTimeoutError, TimedRowFile
from storage.layout import StorageLayout
from system.utf8 import clean_text
from training.data.faults import DataError
from training.task import find_task, list_tasks

if TYPE_CHECKING:
    from training.data.readers import RowSource

MAX_READ_S = 3.0
"""Seconds that one call reads; then the page ends, and the next one continues."""
_ROW_ID = re.compile(r"(\d{1,12})-(\d{1,12})-(\d{1,16})")
_MAX_COLUMNS, _MAX_NAME_CHARACTERS = 100, 200


class RowPageObject(TypedDict):
    """A page of rows as the API shows it.

    `next_after` is the id of the last row that was read, matching or not: the next page begins
    after it.
    """

    object: str
    data: list[ShownRowObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    next_after: str | None
    columns: list[str]
    unit: str


class RowQuery(NamedTuple):
    """What a client asks for: rows after a row that contain a text, with limits."""

    after: str | None = None
    search: str = ""
    limit: int = 20
    max_characters: int = 4000


def read_page(layout: StorageLayout, file_id: str, query: RowQuery) -> RowPageObject:
    """Read a page of the rows of a file.

    Raises `ApiError` 404 for an unknown file, and `InvalidInputError` for a file whose rows cannot
    be read, or that is not a file of rows.
    """
    from training.data.images.image_zip import ImageZip

    files = FileStore(layout)
    path = files.find_content(file_id)
    record = files.get(file_id)
    if record["purpose"] != "fine-tune":
        raise InvalidInputError(
            f"file {file_id!r} has the purpose {record['purpose']!r}: expected a file of rows, "
            "with the purpose 'fine-tune'",
            param="file_id",
        )
    after = _read_place(query.after, path.stat().st_size)
    deadline = time.monotonic() + MAX_READ_S
    source = _open_source(path, files, deadline)
    try:
        return _read(source, after, query, deadline)
    except DataError as exc:
        files.check_unchanged(files.find_known([str(path)]))
        raise InvalidInputError(str(exc), param="file_id") from exc
    finally:
        if isinstance(source, ImageZip):
            source.close()


def _open_source(path: Path, files: FileStore, deadline: float) -> "RowSource":
    """Open a file with the names of all columns that a task knows."""
    from training.data.files.zip_files import is_zip
    from training.data.images.image_rows import COLUMN_NAMES
    from training.data.images.image_zip import ImageZip

    known = files.find_known([str(path)]).get(str(path))
    if is_zip(path):
        return ImageZip(path, COLUMN_NAMES, known)
    names = {name for task in list_tasks() for name in find_task(task).column_names}
    return TimedRowFile(path, names, known=known, deadline=deadline)


def _read_place(after: str | None, size_bytes: int) -> RowPlace | None:
    if after is None:
        return None
    found = _ROW_ID.fullmatch(after)
    place = RowPlace(*map(int, found.groups())) if found else None
    if place is None or place.position > size_bytes or place.number < 1:
        raise InvalidInputError(
            f"after is {after[:100]!r}: expected the id of a row of this file, as in '20-21-4096'",
            param="after",
        )
    return place


def _read(
    source: "RowSource", after: RowPlace | None, query: RowQuery, deadline: float
) -> RowPageObject:
    needle = query.search.casefold()
    unit = ""
    rows: list[ShownRowObject] = []
    columns: list[str] = []
    last, has_more = after, False
    try:
        unit = source.unit
        with closing(_list_rows(source, after, deadline)) as records:
            for place, record in records:
                if len(rows) == query.limit or time.monotonic() > deadline:
                    has_more = True
                    break
                last = place
                columns = columns or _list_columns(record)
                if not needle or contains(record, needle):
                    rows.append(describe_row(place, record, query.max_characters))
    except TimeoutError:
        has_more = True
    if has_more and last == after:
        raise _describe_slow(source, after)
    ids = [row["id"] for row in rows]
    return {
        "object": "list",
        "data": rows,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
        "next_after": last.id if last else None,
        "columns": columns,
        "unit": unit,
    }


def _describe_slow(source: "RowSource", after: RowPlace | None) -> InvalidInputError:
    where = f"after row {after.number}" if after else "at the beginning"
    return InvalidInputError(
        f"{source.name}: no row {where} could be read within {MAX_READ_S:g} s. Compressed files, "
        "JSON arrays and archives are read from their beginning: convert the file to JSONL to page "
        "through all of it",
        param="after",
    )


def _list_columns(record: object) -> list[str]:
    """Return the columns of a record; those with names that no setting can have are left out."""
    names = [str(key) for key in record] if isinstance(record, Mapping) else []
    kept = [name for name in names if len(name) <= _MAX_NAME_CHARACTERS]
    return [clean_text(name) for name in kept[:_MAX_COLUMNS]]


def _list_rows(
    source: "RowSource", after: RowPlace | None, deadline: float
) -> Generator[tuple[RowPlace, Any]]:
    """Yield the rows after a place; those before are not read if the file allows it.

    Raises `RowsTimeoutError` if rows must be read from the beginning and that takes too long.
    """
    from training.data.ray_data.spans import Span, SpanSource

    kind = _find_start(source)
    if kind is None:
        yield from _skip_rows(source, after, deadline)
        return
    start = (after.number if kind == "number" else after.position) if after else 0
    num_lines = after.line - 1 if after and kind == "byte" else 0
    spans = SpanSource(source, [Span(start, None, num_lines)])
    number = after.number - 1 if after else 0
    with closing(spans.read()) as records:
        for line, record in records:
            number += 1
            place = spans.places.pop()
            if after and kind == "table":  # its lines are counted from where reading started
                line += after.line - 1
            if after and number == after.number:
                continue
            yield RowPlace(number, line, 0 if kind == "number" else place), record


def _find_start(source: "RowSource") -> str | None:
    """Return how reading starts at a row: at its byte, in a table, or by its number; or None."""
    from training.data.files.kinds import COLUMNAR_KINDS
    from training.data.readers import RowFile

    if not isinstance(source, RowFile):
        return None
    found = source.detect()
    if found.kind in COLUMNAR_KINDS:
        return "number"
    if found.is_packed or found.kind == "array":
        return None
    return "table" if found.kind == "table" else "byte"


def _skip_rows(
    source: "RowSource", after: RowPlace | None, deadline: float
) -> Iterator[tuple[RowPlace, Any]]:
    for number, (line, record) in enumerate(source.read(), 1):
        if after is None or number > after.number:
            yield RowPlace(number, line, 0), record
        elif time.monotonic() > deadline:
            raise RowsTimeoutError
