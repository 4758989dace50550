"""Streaming readers of files and hub data sets; each record has the line on which it begins.

The content of a file determines its kind; the suffix is only a hint. Only the row that is being
read is held in memory. A row that cannot be read is yielded as its `RowFault`, so that all faults
of a file are reported together.
"""

from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from storage import durable
from training.data.faults import DataError
from training.data.files.columnar import read_columnar
from training.data.files.columnar_process import drop_nulls
from training.data.files.csv_rows import read_table
from training.data.files.json_rows import read_json_array, read_json_lines
from training.data.files.kinds import (
    COLUMNAR_KINDS,
    EXPECTED,
    NUM_MAGIC_BYTES,
    FileKind,
    Record,
    detect_kind,
    find_columnar_kind,
    find_suffix,
)
from training.data.files.packed import find_position, open_unpacked
from training.data.files.text_rows import read_text
from training.settings.row_sources import HubDataset
from training.settings.source_settings import TextRows
from training.spec import name_source

_SAMPLE_BYTES = 1 << 16
_HUB_BATCH_ROWS = 256


class KnownFile(NamedTuple):
    """The record of an uploaded file; the hash is valid only for a file of this size."""

    name: str
    size_bytes: int
    sha256: str | None


class DetectedKind(NamedTuple):
    """The kind of a file, whether it is compressed, and its beginning, unpacked."""

    kind: FileKind
    is_packed: bool
    sample: bytes


@dataclass
class RowFile:
    """A file of rows.

    `names` are expected column names; they distinguish a CSV file from malformed JSON. `known` is
    the record of the file from when it was received. `reads_binary` keeps the bytes in columns of
    Parquet and Arrow files, each as `{"base64": …}`. After `deadline`, a monotonic time, reading
    one of these files ends with `TimeoutError`.
    """

    path: Path
    names: Collection[str] = ()
    position: int = 0  # bytes that have been read
    known: KnownFile | None = None
    text_rows: TextRows = "line"
    reads_binary: bool = False
    deadline: float = float("inf")
    _sha256: str | None = None

    @property
    def name(self) -> str:
        """The name of the file in messages: the name that its user gave it, never its path."""
        return self.known.name if self.known else self.path.name

    def measure(self) -> int:
        """Return its size in bytes; raises `DataError` if there is no such file."""
        if self.path.is_dir():
            raise DataError(f"{self.name!r} is a folder: expected a file of rows")
        if self.path.exists() and not self.path.is_file():
            raise DataError(
                f"{self.name!r} is a pipe or a device: expected a regular file of rows, which is "
                "read several times"
            )
        try:
            return self.path.stat().st_size
        except OSError:
            raise DataError(f"no file at {str(self.path)!r}: {EXPECTED}") from None

    def compute_fingerprint(self) -> str:
        """Return the SHA-256 of the content in hexadecimal, from its record if there is one."""
        size_bytes = self.measure()
        if self._sha256 is None:
            if self.known and self.known.sha256 and self.known.size_bytes == size_bytes:
                self._sha256 = self.known.sha256
            else:
                self._sha256 = durable.hash_file(self.path)
        return self._sha256

    @property
    def unit(self) -> str:
        """The unit in which its records are counted: lines, or rows for files without lines."""
        try:
            with self.open_file() as file:
                return "row" if find_columnar_kind(file.read(NUM_MAGIC_BYTES)) else "line"
        except OSError:  # reading it reports the error
            return "line"

    def open_file(self) -> BinaryIO:
        """Open the file as it is stored, for reading at any byte."""
        return self.path.open("rb")

    @property
    def suffix(self) -> str:
        """The suffix of the name for its content, as in '.csv'."""
        return find_suffix(self.path)

    def detect(self) -> DetectedKind:
        """Detect its kind by its beginning; raises `DataError` for an unsupported kind."""
        self.measure()
        with open_unpacked(self.path, self.name) as file:
            is_packed = not isinstance(file.raw, FileIO)  # type: ignore[attr-defined]
            sample = file.read(_SAMPLE_BYTES)
        kind = detect_kind(self.name, self.suffix, sample, self.names)
        return DetectedKind(kind, is_packed, sample)

    def read(self) -> Iterator[Record]:
        """Yield the records; raises `DataError` for a file of an unsupported kind."""
        kind, is_packed, sample = self.detect()
        if kind in COLUMNAR_KINDS:
            yield from self._read_columnar(kind, is_packed=is_packed)
            return
        with open_unpacked(self.path, self.name) as file:
            if sample.startswith(BOM_UTF8):
                file.read(len(BOM_UTF8))
            for record in self.read_kind(kind, file, sample):
                self.position = find_position(file)
                yield record

    def _read_columnar(self, kind: FileKind, *, is_packed: bool) -> Iterator[Record]:
        if is_packed:
            raise DataError(
                f"{self.name} is a Parquet or Arrow file compressed as a whole: unpack it; these "
                "files have a compression of their own"
            )
        for position, record in read_columnar(
            self.path,
            self.name,
            kind,
            reads_binary=self.reads_binary,
            deadline=self.deadline,
        ):
            self.position = position
            yield record

    def read_kind(self, kind: FileKind, file: BinaryIO, sample: bytes) -> Iterator[Record]:
        """Yield the records of an open file of lines, a JSON array, a table or plain text."""
        if kind == "table":
            rows = read_table(file, self.name, self.suffix, sample)
            return (record for _, record in rows)
        if kind == "text":
            return read_text(file, self.text_rows)
        return read_json_array(file) if kind == "array" else read_json_lines(file)


@dataclass
class HubRows:
    """The rows of a data set on the hub, in its local cache, or in a local folder."""

    dataset: HubDataset
    unit: str = "row"
    path: None = None
    position: int = 0  # bytes that have been read, in Arrow's encoding
    _table: Any = None

    @property
    def name(self) -> str:
        """The name of the data set in messages: its id, or the last part of a folder's path."""
        return name_source(self.dataset.id)

    def measure(self) -> int:
        """Return its size in bytes; raises `DataError` if it cannot be loaded."""
        return max(1, int(self._load().data.nbytes))

    def compute_fingerprint(self) -> str:
        """Return the fingerprint of the loaded data set, which identifies its content."""
        return str(self._load()._fingerprint)

    def read(self) -> Iterator[Record]:
        """Yield the records; rows are counted from 1."""
        table, size, number = self._load(), self.measure(), 0
        names = list(table.column_names)
        class_names = _list_class_names(table.features)
        for batch in table.iter(batch_size=_HUB_BATCH_ROWS):
            for values in zip(*(batch[name] for name in names), strict=True):
                number += 1
                record = dict(zip(names, map(drop_nulls, values), strict=True))
                for name in class_names.keys() & record.keys():
                    record[name] = class_names[name].get(record[name])
                yield number, record
            self.position = size * number // len(table)

    def _load(self) -> Any:
        if self._table is None:
            self._table = _load_dataset(self.dataset, self.name)
        return self._table


class RowSource(Protocol):
    """A source of rows, which is read once to encode them."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def path(self) -> Path | None:
        """The file or folder; None for a data set on the hub."""

    @property
    def unit(self) -> str:
        """The unit in which its records are counted, such as lines."""

    @property
    def position(self) -> int:
        """How many of its bytes have been read."""

    def measure(self) -> int:
        """Return its size in bytes; raises `DataError` if it cannot be read."""

    def compute_fingerprint(self) -> str:
        """Return what identifies its content."""

    def read(self) -> Iterator[Record]:
        """Yield the records, each with its line or number."""


def _list_class_names(features: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """Return the names of the classes by their numbers, for each column of classes.

    Other numbers, such as -1, mean a row without a label.
    """
    import datasets

    return {
        column: dict(enumerate(feature.names))
        for column, feature in features.items()
        if isinstance(feature, datasets.ClassLabel)
    }


def _load_dataset(dataset: HubDataset, name: str) -> Any:
    import datasets  # slow to import; most rows come from files

    try:
        table = datasets.load_dataset(
            dataset.id, dataset.name, split=dataset.split, revision=dataset.revision
        )
        for column, feature in table.features.items():
            if isinstance(feature, datasets.Image):  # else each image would be decoded
                table = table.cast_column(column, datasets.Image(decode=False))
    except (ValueError, OSError, RuntimeError, datasets.exceptions.DatasetsError) as exc:
        reason = (str(exc).splitlines() or [type(exc).__name__])[0].replace(dataset.id, name)
        raise DataError(
            f"the data set {name!r} (split {dataset.split!r}) cannot be loaded: {reason[:300]}"
        ) from exc
    return table
