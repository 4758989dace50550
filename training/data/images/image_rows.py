"""Rows of an image with a label: files of such rows, parsing, and their columns in a table."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from storage import durable
from training.data.faults import DataError, RowFault, show_names, show_value
from training.data.images.encoded_image import (
    check_image,
    find_image_file,
    find_image_path,
    get_image_bytes,
    read_image_file,
)
from training.data.images.image_folder import ImageFolder
from training.data.images.image_zip import ImageZip
from training.data.labelled.labels import LABEL_COLUMNS, get_labels, list_columns
from training.data.readers import RowFile, RowSource
from training.data.row_table import Counts, read_list

IMAGE_COLUMNS = ("image", "img", "file_name", "filename", "path")
COLUMN_NAMES = (*IMAGE_COLUMNS, *LABEL_COLUMNS)
_KEYS = ("image", "label")


class ImageColumns(NamedTuple):
    """The columns of the image of a row and of its label."""

    image: str
    label: str

    def describe(self) -> str:
        """Name the columns, for messages."""
        return f"{self.image}, with {self.label}"


def choose_image_columns(record: Any, mapped: Mapping[str, str]) -> ImageColumns:
    """Choose the columns by the first row; `mapped` are those that the spec names.

    Raises `DataError` that says what is missing.
    """
    keys = list_columns(record, mapped, _KEYS)
    image = mapped.get("image") or next((name for name in IMAGE_COLUMNS if name in keys), None)
    label = mapped.get("label") or next((name for name in LABEL_COLUMNS if name in keys), None)
    if image is None or label is None:
        what = "label" if image is not None else "image"
        raise DataError(
            f"the first row has no column for the {what}: found {show_names(keys)}; expected "
            "'image' and 'label', or set columns, as in "
            f'{{"{what}": {show_value(keys[0] if keys else "")}}}'
        )
    return ImageColumns(image, label)


@dataclass
class ImageRowFile(RowFile):
    """A file of rows with images, or with the paths of images in the folder of the file.

    `columns` are those that the spec names.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    reads_binary: bool = True
    _fingerprint: str | None = None

    def compute_fingerprint(self) -> str:
        """Hash the content of the file, and of the images that its rows name."""
        if self._fingerprint is None:
            own = super().compute_fingerprint()
            self._fingerprint = own if self.known else self._add_images(own)
        return self._fingerprint

    def _add_images(self, own: str) -> str:
        digest = hashlib.sha256(own.encode())
        columns: ImageColumns | None = None
        for _, record in self.read():
            try:
                columns = columns or choose_image_columns(record, self.columns)
                path = find_image_path(record.get(columns.image))
                if path is None:  # the images are in the rows
                    return own
                content = durable.hash_file(find_image_file(self.path.parent, path))
            except (DataError, RowFault, AttributeError, OSError) as exc:  # reading reports it
                content = type(exc).__name__
            digest.update(content.encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class ImageSample:
    """One row: an encoded image, and the name of its class."""

    line: int
    number: int
    image: bytes = field(repr=False)
    labels: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    is_part: bool = False

    @property
    def length(self) -> int:
        """One: a micro batch counts images."""
        return 1

    @property
    def num_targets(self) -> int:
        """One: the loss compares the row's output with its label."""
        return 1

    @property
    def size_bytes(self) -> int:
        """The size of the image."""
        return len(self.image)

    def truncate(self, max_length: int) -> "ImageSample":  # noqa: ARG002 - the protocol's
        """Return itself: an image is never too long."""
        return self

    def renumber(self, number: int) -> "ImageSample":
        """Return a copy with the number of its row."""
        return replace(self, number=number)


class ImageRow(NamedTuple):
    """A row as its table returns it; `image` is encoded, and mapped from the table."""

    image: memoryview
    labels: tuple[str, ...]


class ImageLayout:
    """Rows of encoded images with labels: each counts as one, and is one target."""

    schema = pa.schema(
        [
            ("line", pa.int64()),
            ("number", pa.int64()),
            ("image", pa.binary()),
            ("labels", pa.list_(pa.string())),
            ("truncated_tokens", pa.int32()),
        ]
    )

    def make_batch(self, rows: Sequence[ImageSample]) -> Any:
        """Return the rows as a record batch."""
        columns = [
            pa.array([row.line for row in rows], pa.int64()),
            pa.array([row.number for row in rows], pa.int64()),
            pa.array([row.image for row in rows], pa.binary()),
            pa.array([list(row.labels) for row in rows], pa.list_(pa.string())),
            pa.array([0] * len(rows), pa.int32()),
        ]
        return pa.record_batch(columns, schema=self.schema)

    def measure_rows(self, batch: Any) -> Counts:
        """Return one for each row."""
        return np.ones(batch.num_rows, np.int32)

    def count_targets(self, batch: Any) -> Counts:
        """Return one for each row."""
        return np.ones(batch.num_rows, np.int32)

    def read_row(self, batch: Any, place: int) -> ImageRow:
        """Read a row; its image is not copied."""
        image = memoryview(batch.column("image")[place].as_buffer())
        return ImageRow(image, tuple(read_list(batch, "labels", place).to_pylist()))


IMAGE_LAYOUT = ImageLayout()


class ImageReader:
    """Reads the rows of one source as encoded images with labels, each decoded once as a check."""

    def __init__(self, source: RowSource, columns: Mapping[str, str]) -> None:
        self._source = source
        self._mapped = columns
        self._columns: ImageColumns | None = None
        self._has_paths = False
        self._open_image = _find_images(source)

    @property
    def format(self) -> str | None:
        """The columns of the rows; None before the first record."""
        return None if self._columns is None else self._columns.describe()

    def parse(self, line: int, record: Any, number: int) -> ImageSample:
        """Parse one record and check its image.

        Raises `RowFault`, and `DataError` if the first row lacks a column, or if there is no folder
        in which its path could be.
        """
        if self._columns is None:
            self._columns = self._choose_columns(record)
        if not isinstance(record, Mapping):
            raise RowFault("expected an object, found {}", show_value(record))
        labels = get_labels(record, self._columns.label)
        if len(labels) != 1:
            raise RowFault("it has {} labels, expected the name of one class", len(labels))
        image = self._read_image(record.get(self._columns.image), self._columns.image)
        ignored = tuple(sorted(str(key) for key in record if key not in self._columns))
        return ImageSample(line, number, image, labels, ignored)

    def _choose_columns(self, record: Any) -> ImageColumns:
        try:
            columns = choose_image_columns(record, self._mapped)
        except DataError as exc:
            raise DataError(f"{self._source.name}: {exc}") from exc
        self._has_paths = find_image_path(record.get(columns.image)) is not None
        if self._has_paths and self._open_image is None:
            raise DataError(
                f"{self._source.name}: the column {columns.image!r} has paths, and an uploaded "
                "file or a data set of the hub has no folder of images; expected a ZIP archive of "
                "the file and its images, or the images themselves, as in a Parquet file that the "
                "datasets library writes"
            )
        return columns

    def _read_image(self, value: Any, column: str) -> bytes:
        path = find_image_path(value)
        if path is None:
            image = get_image_bytes(value, column)
            if self._has_paths:
                raise RowFault("{!r} is an image, expected a path as in the first row", column)
            check_image(image, column)
            return image
        if not self._has_paths or self._open_image is None:
            raise RowFault(
                "{!r} is the path {}, expected an image as in the first row",
                column,
                show_value(path),
            )
        image = self._open_image(path)
        check_image(image, path)
        return image

    def encode(
        self, batches: Iterable[Sequence[ImageSample]]
    ) -> Iterator[tuple[ImageSample, ImageSample | RowFault]]:
        """Yield each row unchanged: it is stored as it was read."""
        for rows in batches:
            for row in rows:
                yield row, row

    def describe(self) -> dict[str, Any]:
        """Return nothing more: the format names the columns."""
        return {}

    def close(self) -> None:
        """Close an archive of images."""
        if isinstance(self._source, ImageZip):
            self._source.close()


def _find_images(source: RowSource) -> Callable[[str], bytes] | None:
    """Return what reads an image by its path in a row; None if the source has no images."""
    if isinstance(source, ImageZip):
        return source.read_image
    if isinstance(source, ImageFolder):
        return partial(_read_from, source.path)
    if isinstance(source, RowFile) and source.known is None:
        return partial(_read_from, source.path.parent)
    return None


def _read_from(folder: Path, path: str) -> bytes:
    return read_image_file(find_image_file(folder, path), path)
