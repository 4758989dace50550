"""ZIP archives of images, read without unpacking them to disk.

An archive is untrusted: a small one may declare any number of files of any size. So its directory
is limited before it is read, and a file is read up to the size that it declares.
"""

import shutil
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from training.data.faults import DataError, show_names, show_value
from training.data.files.kinds import (
    IMAGE_SUFFIXES,
    NUM_MAGIC_BYTES,
    ROW_SUFFIXES,
    find_columnar_kind,
    find_compression,
    find_suffix,
)

ZIP_MAGIC = b"PK\x03\x04"
MAX_FILES = 100_000
_MAX_DIRECTORY_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20
_MAX_NAME_CHARACTERS = 1_000
# For other methods, zipfile decompresses each read completely, whatever size a file declares.
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 1  # bit in the flags of a file
_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    UnicodeError,
    ValueError,
)
_EXPECTED = (
    "expected a folder of images for each class, or images and one file of rows that names them"
)


class ZipContent(NamedTuple):
    """The visible files of an archive by their paths, relative to the file of rows if it has one.

    `rows` is the path of that file; without one, the first part of each path is a class.
    """

    files: Mapping[str, zipfile.ZipInfo]
    rows: str | None


class _ArchiveReader(BufferedReader):
    """An archive whose directory, which `ZipFile` reads at once, is limited."""

    is_opened = False
    """Whether the directory has been read; files are read up to the size that they declare."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read a piece; raises `BadZipFile` for a directory that is too large."""
        if self.is_opened:
            return super().read(size)
        is_whole = size is None or size < 0 or size > _MAX_DIRECTORY_BYTES
        found = super().read(_MAX_DIRECTORY_BYTES + 1 if is_whole else size)
        if len(found) > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"its directory has more than {_MAX_DIRECTORY_BYTES:,} bytes")
        return found


@contextmanager
def open_zip(path: Path, name: str) -> Iterator[zipfile.ZipFile]:
    """Open an archive, whose name in messages is `name`; raises `DataError` if it is damaged."""
    with _ArchiveReader(FileIO(path)) as file:
        with _describe_faults(name):
            archive = zipfile.ZipFile(file)
        file.is_opened = True
        with archive:
            yield archive


def survey_zip(archive: zipfile.ZipFile, name: str) -> ZipContent:
    """Check what an archive contains, and return it; hidden files and folders are left out.

    Raises `DataError` that names files which are no images, links, paths that lead out of the
    archive, and contents that are not those of `_EXPECTED`.
    """
    found = _list_files(archive, name)
    rows = [path for path in found if find_suffix(Path(path)) in ROW_SUFFIXES]
    others = [path for path in found if path not in rows and not _is_image(path)]
    if others:
        raise DataError(
            f"{name} has other files than images: {show_names(others)}; remove them. {_EXPECTED}, "
            f"of the kinds {', '.join(IMAGE_SUFFIXES)}"
        )
    if len(rows) > 1:
        raise DataError(f"{name} has several files of rows: {show_names(rows)}; {_EXPECTED}")
    if len(found) == len(rows):
        raise DataError(f"{name} has no images: {_EXPECTED}")
    if rows:
        _check_rows(archive, rows[0], found[rows[0]], name)
        return ZipContent(*_relate_to_rows(found, rows[0]))
    files = _drop_root(found)
    if misplaced := [path for path in files if path.count("/") != 1]:
        raise DataError(
            f"{name} has images outside the folders of the classes: {show_names(misplaced)}; "
            f"{_EXPECTED}"
        )
    return ZipContent(files, None)


def measure_zip(path: Path, name: str) -> int:
    """Check an archive, and return the bytes of its files; raises `DataError`."""
    with open_zip(path, name) as archive:
        return sum(info.file_size for info in survey_zip(archive, name).files.values())


def read_zip_file(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> bytes:
    """Read a file of an archive completely; raises `DataError` if it is damaged."""
    with _describe_faults(name), archive.open(info) as file:
        return file.read(info.file_size)


def copy_zip_file(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, target: Path) -> None:
    """Copy a file of an archive in pieces; raises `DataError` if it is damaged."""
    with target.open("xb") as copy, _describe_faults(name), archive.open(info) as file:
        shutil.copyfileobj(file, copy, _CHUNK_BYTES)


def is_zip(path: Path) -> bool:
    """Return whether a file is a ZIP archive by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
    except OSError:  # reading it reports the error
        return False


def _list_files(archive: zipfile.ZipFile, name: str) -> dict[str, zipfile.ZipInfo]:
    """Return the visible files by their paths."""
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        raise DataError(f"{name} has {len(entries):,} files, expected at most {MAX_FILES:,}")
    _check_sizes(archive, entries, name)
    found: dict[str, zipfile.ZipInfo] = {}
    for info in entries:
        parts = PurePosixPath(info.filename).parts
        if any((part.startswith(".") and part != "..") or part == "__MACOSX" for part in parts):
            continue
        _check_entry(info, name)
        if info.is_dir():
            continue
        path = str(PurePosixPath(info.filename))
        if path in found:
            raise DataError(f"{name} has the file {show_value(path)} twice, expected once")
        found[path] = info
    return found


def _check_sizes(archive: zipfile.ZipFile, entries: Sequence[zipfile.ZipInfo], name: str) -> None:
    """Refuse files that share compressed bytes, as those of a ZIP bomb do."""
    assert archive.fp is not None
    packed_bytes = sum(info.compress_size for info in entries)
    size_bytes = archive.fp.seek(0, 2)
    starts = Counter(info.header_offset for info in entries)
    if packed_bytes > size_bytes or any(count > 1 for count in starts.values()):
        raise DataError(f"{name} has files that overlap, which no usual program writes")


def _check_entry(info: zipfile.ZipInfo, name: str) -> None:
    path, shown = PurePosixPath(info.filename), show_value(info.filename)
    is_outside = path.is_absolute() or PureWindowsPath(info.filename).drive or ".." in path.parts
    if is_outside or "\\" in info.filename or len(info.filename) > _MAX_NAME_CHARACTERS:
        raise DataError(
            f"{name} has the path {shown}, expected a path inside the archive, with '/', of at "
            f"most {_MAX_NAME_CHARACTERS:,} characters"
        )
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise DataError(f"{name}: {shown} is a link or a device, expected a regular file")
    if info.flag_bits & _ENCRYPTED:
        raise DataError(f"{name}: {shown} is encrypted, expected files without a password")
    if info.compress_type not in _METHODS:
        raise DataError(
            f"{name}: {shown} is compressed with method {info.compress_type}, expected 'deflate' "
            "or none"
        )


def _check_rows(archive: zipfile.ZipFile, path: str, info: zipfile.ZipInfo, name: str) -> None:
    """Refuse a compressed file of rows, whose unpacked size the archive does not declare."""
    with _describe_faults(name), archive.open(info) as file:
        head = file.read(NUM_MAGIC_BYTES)
    if find_compression(head) or find_columnar_kind(head):
        raise DataError(
            f"{name}: {show_value(path)} is compressed itself, or in Parquet or Arrow; expected "
            "rows as CSV or JSONL, which the archive compresses"
        )


def _is_image(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in IMAGE_SUFFIXES


def _relate_to_rows(
    found: Mapping[str, zipfile.ZipInfo], rows: str
) -> tuple[dict[str, zipfile.ZipInfo], str]:
    """Return the files below the folder of the file of rows, relative to it."""
    prefix = rows[: rows.rfind("/") + 1]
    files = {path[len(prefix) :]: found[path] for path in found if path.startswith(prefix)}
    return files, rows[len(prefix) :]


def _drop_root(found: Mapping[str, zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Return the files without the one folder that contains the folders of all classes, if any."""
    roots = {path.partition("/")[0] for path in found}
    if len(roots) == 1 and all(path.count("/") == 2 for path in found):
        return {path.partition("/")[2]: found[path] for path in found}
    return dict(found)


@contextmanager
def _describe_faults(name: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except _FAULTS as exc:
        reason = (str(exc) or type(exc).__name__)[:200]
        raise DataError(f"{name} is no ZIP archive that can be read ({reason})") from exc
