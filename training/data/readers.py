"""Files and hub data sets to records, one by one, each with the line on which it begins.

What kind of file it is, its content tells; a suffix only helps. Nothing is held in memory beyond
the row that is being read. A row that cannot be read is yielded as its `RowFault`, so that the
faults of a file are told all together.
"""

import csv
import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from storage import durable
from training.data.faults import DataError, RowFault, show_names, show_value
from training.data.json_array import describe_json_error, read_array
from training.data.row_limits import MAX_ROW_BYTES
from training.spec import HubDataset, name_source

FileKind = Literal["lines", "array", "table"]
Record = tuple[int, Any]  # the line, and what stands there or the `RowFault` why it is unknown

_SAMPLE_BYTES = 1 << 16
_HUB_BATCH_ROWS = 256
_SEPARATORS = (",", ";", "\t")
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_EXPECTED = "expected rows as JSONL, as a JSON array, or as CSV, in UTF-8"
_BINARY_KINDS = {
    b"PAR1": "a Parquet file: convert it to JSONL, or name its folder as train_dataset",
    b"ARROW1": "an Arrow file: convert it to JSONL",
    b"PK\x03\x04": "a ZIP archive or an Office document: unpack it, or save it as CSV",
    b"\x1f\x8b": "compressed with gzip: unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it",
    b"%PDF": "a PDF",
    b"\xff\xfe": "encoded in UTF-16: save it as UTF-8",
    b"\xfe\xff": "encoded in UTF-16: save it as UTF-8",
}


class KnownFile(NamedTuple):
    """What is on record about a file; the hash holds only for a file of this size."""

    name: str
    size_bytes: int
    sha256: str | None


@dataclass
class RowFile:
    """A file of rows.

    `names` are column names that one may expect; they tell a CSV file from broken JSON. `known` is
    what was recorded of the file when it was received.
    """

    path: Path
    names: Collection[str] = ()
    unit: str = "line"
    position: int = 0  # bytes that have been read
    known: KnownFile | None = None
    _sha256: str | None = None

    @property
    def name(self) -> str:
        """What messages call the file: the name that its user gave it, never where it lies."""
        return self.known.name if self.known else self.path.name

    def measure(self) -> int:
        """Its size in bytes; raises `DataError` if there is no such file."""
        if self.path.is_dir():
            raise DataError(f"{self.name!r} is a folder: expected a file of rows")
        try:
            return self.path.stat().st_size
        except OSError:
            raise DataError(f"no file at {str(self.path)!r}: {_EXPECTED}") from None

    def compute_fingerprint(self) -> str:
        """Return the SHA-256 of the content in hexadecimal, from its record if there is one."""
        size_bytes = self.measure()
        if self._sha256 is None:
            if self.known and self.known.sha256 and self.known.size_bytes == size_bytes:
                self._sha256 = self.known.sha256
            else:
                self._sha256 = durable.hash_file(self.path)
        return self._sha256

    def read(self) -> Iterator[Record]:
        """Yield the records; raises `DataError` for a file that holds nothing of ours."""
        self.measure()
        with self.path.open("rb") as file:
            sample = file.read(_SAMPLE_BYTES)
            kind = _tell_kind(self, sample)
            file.seek(3 if sample.startswith(b"\xef\xbb\xbf") else 0)
            for record in _READERS[kind](file, self):
                self.position = file.tell()
                yield record


@dataclass
class HubRows:
    """The rows of a data set on the hub, in its local cache, or in a local folder."""

    dataset: HubDataset
    unit: str = "row"
    position: int = 0  # bytes that have been read, in Arrow's encoding
    _table: Any = None

    @property
    def name(self) -> str:
        """What messages call the data set: its id, of a folder only the last part."""
        return name_source(self.dataset.id)

    def measure(self) -> int:
        """Its size in bytes; raises `DataError` if it cannot be loaded."""
        return max(1, int(self._load().data.nbytes))

    def compute_fingerprint(self) -> str:
        """What identifies its content: the fingerprint of the loaded data set."""
        return str(self._load()._fingerprint)

    def read(self) -> Iterator[Record]:
        """Yield the records; rows are counted from 1."""
        table, size, number = self._load(), self.measure(), 0
        names = list(table.column_names)
        for batch in table.iter(batch_size=_HUB_BATCH_ROWS):
            for values in zip(*(batch[name] for name in names), strict=True):
                number += 1
                yield number, dict(zip(names, map(_drop_nulls, values), strict=True))
            self.position = size * number // len(table)

    def _load(self) -> Any:
        if self._table is None:
            self._table = _load_dataset(self.dataset, self.name)
        return self._table


RowSource = RowFile | HubRows


def _load_dataset(dataset: HubDataset, name: str) -> Any:
    import datasets  # slow to import; most rows come from files

    try:
        return datasets.load_dataset(
            dataset.id, dataset.name, split=dataset.split, revision=dataset.revision
        )
    except (ValueError, OSError, RuntimeError, datasets.exceptions.DatasetsError) as exc:
        reason = (str(exc).splitlines() or [type(exc).__name__])[0].replace(dataset.id, name)
        raise DataError(
            f"the data set {name!r} (split {dataset.split!r}) cannot be loaded: {reason[:300]}"
        ) from exc


def _drop_nulls(value: Any) -> Any:
    """Leave out the nulls with which Arrow fills up objects that differ in their keys."""
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_drop_nulls(item) for item in value]
    return value


def _tell_kind(source: RowFile, sample: bytes) -> FileKind:
    text = _decode_sample(source.name, sample)
    begin = text.lstrip()
    if begin.startswith("["):
        return "array"
    if begin.startswith("{"):
        _refuse_spread_object(source.name, begin)
        return "lines"
    suffix = source.path.suffix.lower()
    first = begin.split("\n", 1)[0].strip()
    separator = _find_separator(suffix, first)
    cells = {cell.strip().strip('"') for cell in first.split(separator)}
    if suffix in (".csv", ".tsv") or cells & set(source.names):
        return "table"
    if not begin or suffix in _JSON_SUFFIXES or _is_json(first):
        return "lines"
    if separator in first:
        return "table"
    raise DataError(f"{source.name} begins with {show_value(first)}: {_EXPECTED}")


def _decode_sample(name: str, sample: bytes) -> str:
    for magic, kind in _BINARY_KINDS.items():
        if sample.startswith(magic):
            raise DataError(f"{name} is not text but {kind}; {_EXPECTED}")
    if (place := sample.find(b"\0")) >= 0:
        raise DataError(f"{name} is not text: byte {place} is NUL; {_EXPECTED}")
    return sample.decode("utf-8-sig", errors="replace")


def _refuse_spread_object(name: str, text: str) -> None:
    """Refuse one object over several lines, which is no row of JSONL and no array of rows."""
    lines = [line.strip() for line in text.split("\n", 20) if line.strip()]
    if len(lines) < 2 or _is_json(lines[0]):
        return
    if lines[0][-1] in "{[" or not lines[1].startswith("{"):
        raise DataError(
            f"{name} holds an object over several lines, beginning with {show_value(lines[0])}: "
            "expected one object a line, or an array of objects; if the rows stand in a list "
            "within it, as in {'data': [...]}, make the file that list alone"
        )


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _find_separator(suffix: str, header: str) -> str:
    if suffix == ".tsv":
        return "\t"
    return max(_SEPARATORS, key=header.count)  # the first of equals: a comma


def _read_lines(file: BinaryIO, _source: RowFile) -> Iterator[Record]:
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > MAX_ROW_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_ROW_BYTES)
            yield number, _describe_endless()
        elif line.strip():
            yield number, _parse_line(line)


def _describe_endless() -> RowFault:
    return RowFault("longer than {:,} bytes, the most of one row", MAX_ROW_BYTES)


def _parse_line(line: bytes) -> Any:
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
    """Make a JSON object; raises `RowFault` if a key stands there twice, so that none is lost."""
    record = dict(pairs)
    if len(record) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise RowFault("the key {} stands there twice", show_value(twice))
    return record


def _read_array(file: BinaryIO, _source: RowFile) -> Iterator[Record]:
    return read_array(file, make_object, MAX_ROW_BYTES)


def _read_table(file: BinaryIO, source: RowFile) -> Iterator[Record]:
    # The limit is the process's: a larger one lets nothing through that was refused for a reason.
    csv.field_size_limit(MAX_ROW_BYTES)
    start = file.tell()
    sample = file.read(_SAMPLE_BYTES).decode(errors="replace").lstrip()
    file.seek(start)
    separator = _find_separator(source.path.suffix.lower(), sample.split("\n", 1)[0])
    text = TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    try:
        lines = _RowLines(text)
        reader = csv.reader(
            lines, delimiter=separator, quoting=_find_quoting(sample, separator), strict=True
        )
        yield from _read_cells(source.name, reader, lines)
    finally:
        text.detach()


class _RowLines:
    """The lines of a table, of which a row may have only so many characters.

    A quote that is not closed makes one row of all that follows.
    """

    def __init__(self, text: TextIOWrapper) -> None:
        self._text = text
        self._num_characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(MAX_ROW_BYTES + 1)
        self._num_characters += len(line)
        if self._num_characters > MAX_ROW_BYTES:
            raise _describe_endless()
        if not line:
            raise StopIteration
        return line

    def begin_row(self) -> None:
        """Count the characters of the next row."""
        self._num_characters = 0


def _find_quoting(sample: str, separator: str) -> Literal[0, 3]:
    """Tell whether quotes are quotes: where tabs separate, they are often plain text."""
    if separator == "\t":
        try:
            list(csv.reader(sample.splitlines(keepends=True), delimiter=separator, strict=True))
        except csv.Error as exc:
            if "expected after" in str(exc):  # a sample may well end within quotes
                return csv.QUOTE_NONE
    return csv.QUOTE_MINIMAL


def _read_cells(name: str, reader: Any, lines: _RowLines) -> Iterator[Record]:
    header: list[str] | None = None
    is_open = True
    while is_open:
        line = reader.line_num + 1
        lines.begin_row()
        try:
            cells = next(reader, None)
        except RowFault as fault:  # where the next row begins is not known
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


_READERS = {"lines": _read_lines, "array": _read_array, "table": _read_table}
