"""A ZIP archive of images as a source of rows: folders of classes, or a file that names images."""

import tempfile
import zipfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from storage import durable
from training.data.faults import DataError, RowFault, show_value
from training.data.files.kinds import Record
from training.data.files.zip_files import (
    ZipContent,
    copy_zip_file,
    open_zip,
    read_zip_file,
    survey_zip,
)
from training.data.images.encoded_image import check_size
from training.data.images.image_folder import IMAGE_COLUMN, LABEL_COLUMN
from training.data.readers import KnownFile, RowFile

MAX_ROWS_BYTES = 256 << 20
"""Most bytes of a file of rows in an archive."""


class ImageZip:
    """The images of an archive; nothing of it is written to disk but a file of rows, while read.

    `names` are expected column names of a file of rows. `known` is the record of an uploaded
    archive. `unit` counts images, or lines of the file of rows.
    """

    def __init__(self, path: Path, names: Collection[str], known: KnownFile | None) -> None:
        self.path = path
        self.position = 0  # bytes of the archive, in proportion to the rows that have been read
        self._names = names
        self._known = known
        self._line = 0  # that was read last
        self._named: dict[str, int] = {}  # the line that names each image
        self._content: ZipContent | None = None
        self._fingerprint = known.sha256 if known else None
        self._opened = ExitStack()
        self._archive: zipfile.ZipFile | None = None

    @property
    def name(self) -> str:
        """The name of the archive in messages: the name that its user gave it."""
        return self._known.name if self._known else self.path.name

    @property
    def unit(self) -> str:
        """The unit in which its rows are counted."""
        try:
            return "image" if self._survey().rows is None else "line"
        except (DataError, OSError):  # reading it reports the error
            return "image"

    def measure(self) -> int:
        """Return the size of the archive; raises `DataError` for one with other content."""
        self._survey()
        return self.path.stat().st_size

    def compute_fingerprint(self) -> str:
        """Return the SHA-256 of the archive in hexadecimal, from its record if there is one."""
        if self._fingerprint is None:
            self._fingerprint = durable.hash_file(self.path)
        return self._fingerprint

    def read(self) -> Iterator[Record]:
        """Yield the path and the label of each image, or the rows of the file of rows."""
        content = self._survey()
        self._named.clear()
        if content.rows is None:
            yield from self._read_classes(content)
            return
        size_bytes = self.measure()
        with self._copy_rows(content, content.rows) as rows:
            for line, record in rows.read():
                self.position = size_bytes * rows.position // max(1, rows.measure())
                self._line = line
                yield line, record

    def read_image(self, path: str) -> bytes:
        """Return the encoded image at the path in the row that was read last.

        Raises `RowFault` if there is none, or if an earlier row has it: each row stores its image,
        so a small archive could otherwise fill the disk.
        """
        name = str(PurePosixPath(path))
        info = self._survey().files.get(name)
        if info is None:
            raise RowFault("there is no file {} in the archive", show_value(path))
        if (first := self._named.get(name)) is not None:
            raise RowFault(
                "{} is the image of line {} already, expected one row for each image",
                show_value(path),
                first,
            )
        self._named[name] = self._line
        check_size(info.file_size, path)
        try:
            return read_zip_file(self._open(), info, self.name)
        except DataError as exc:
            raise RowFault("{} cannot be unpacked ({})", show_value(path), exc) from exc

    def close(self) -> None:
        """Close the archive."""
        self._opened.close()
        self._archive = None

    def _read_classes(self, content: ZipContent) -> Iterator[Record]:
        self.position = 0
        for number, path in enumerate(sorted(content.files), 1):
            yield number, {IMAGE_COLUMN: path, LABEL_COLUMN: path.partition("/")[0]}
            self.position += content.files[path].compress_size

    @contextmanager
    def _copy_rows(self, content: ZipContent, rows: str) -> Iterator[RowFile]:
        info = content.files[rows]
        if info.file_size > MAX_ROWS_BYTES:
            raise DataError(
                f"{self.name}: {show_value(rows)} has {info.file_size:,} bytes, expected at most "
                f"{MAX_ROWS_BYTES:,}"
            )
        known = KnownFile(f"{self.name}/{rows}", info.file_size, None)
        with tempfile.TemporaryDirectory(prefix="tuneserve-rows-") as folder:
            copy = Path(folder) / f"rows{''.join(PurePosixPath(rows).suffixes[-2:])}"
            copy_zip_file(self._open(), info, self.name, copy)
            yield RowFile(copy, self._names, known=known)

    def _survey(self) -> ZipContent:
        if self._content is None:
            try:
                self._content = survey_zip(self._open(), self.name)
            except OSError as exc:
                raise DataError(f"no archive at {str(self.path)!r}: {exc.strerror}") from exc
            finally:
                self.close()
        return self._content

    def _open(self) -> zipfile.ZipFile:
        if self._archive is None:
            self._archive = self._opened.enter_context(open_zip(self.path, self.name))
        return self._archive
