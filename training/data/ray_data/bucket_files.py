"""Files of rows in buckets of object storage, `s3://bucket/key`, which pyarrow opens.

Credentials, region and endpoint come from the environment or from the URL, as pyarrow documents
for `pyarrow.fs.S3FileSystem` and `FileSystem.from_uri`.
"""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit, urlunsplit

from training.data.faults import DataError
from training.data.files.columnar import read_columnar
from training.data.files.kinds import (
    COLUMNAR_KINDS,
    ROW_SUFFIXES,
    Record,
    detect_kind,
    find_compression,
    find_suffix,
)
from training.data.readers import DetectedKind, RowFile

_SAMPLE_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 20


@dataclass
class BucketFile(RowFile):
    """A file of rows in a bucket; its `path` is the URL and is never opened.

    The fingerprint is that of its URL, size and time of modification, because hashing the content
    would download it.
    """

    url: str = field(default="", repr=False)  # may have credentials

    def measure(self) -> int:
        """Return its size in bytes; raises `DataError` if there is no such file."""
        return int(_get_info(self.url, self.name).size)

    def compute_fingerprint(self) -> str:
        """Return a hash of its location, size and time of modification."""
        info = _get_info(self.url, self.name)
        return hashlib.sha256(f"{info.path} {info.size} {info.mtime_ns}".encode()).hexdigest()

    def open_file(self) -> BinaryIO:
        """Open the file for reading at any byte; only what is read is downloaded."""
        return open_url(self.url)

    def detect(self) -> DetectedKind:
        """Detect its kind by its beginning; raises `DataError` for a compressed file."""
        self.measure()
        with self.open_file() as file:
            sample = file.read(_SAMPLE_BYTES)
        if find_compression(sample):
            raise DataError(
                f"{self.name} is compressed, and in a bucket only uncompressed files are read: "
                "unpack it, or convert it to Parquet"
            )
        kind = detect_kind(self.name, self.suffix, sample, self.names)
        return DetectedKind(kind, is_packed=False, sample=sample)

    def read(self) -> Iterator[Record]:
        """Yield the records."""
        kind, _, sample = self.detect()
        if kind in COLUMNAR_KINDS:
            rows = read_columnar(self.url, self.name, kind, reads_binary=self.reads_binary)
            yield from (record for _, record in rows)
            return
        with self.open_file() as file:
            yield from self.read_kind(kind, file, sample)


class _ArrowFile(io.RawIOBase):
    """A file of pyarrow as one of Python."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        chunk = self._file.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def open_url(url: str) -> BinaryIO:
    """Open a file in a bucket."""
    filesystem, path = _connect(url)
    file = _ArrowFile(filesystem.open_input_file(path))
    return cast(BinaryIO, io.BufferedReader(file, buffer_size=_BUFFER_BYTES))


def find_bucket_files(url: str) -> list[str]:
    """Return the URLs of the files that a URL refers to: itself, a folder's, or a pattern's.

    Files are in the order of their names. Raises `DataError` if there are none.
    """
    from pyarrow import fs

    parts = urlsplit(url)
    name = PurePosixPath(parts.path).name
    is_pattern = any(sign in name for sign in "*?[")
    folder = urlunsplit(parts._replace(path=str(PurePosixPath(parts.path).parent)))
    filesystem, path = _connect(folder if is_pattern else url)
    info = _list_infos(filesystem, path, name)[0]
    if not is_pattern and info.type != fs.FileType.Directory:
        return [url]
    found = _list_infos(filesystem, fs.FileSelector(path, recursive=False), name)
    names = sorted(
        one.base_name
        for one in found
        if one.type == fs.FileType.File
        and not one.base_name.startswith(".")
        and (fnmatch(one.base_name, name) if is_pattern else _holds_rows(one.base_name))
    )
    if not names:
        suffixes = ", ".join(ROW_SUFFIXES)
        raise DataError(f"{name!r} matches no file of rows; expected files with {suffixes}")
    base = urlsplit(folder if is_pattern else url)
    return [urlunsplit(base._replace(path=f"{base.path.rstrip('/')}/{one}")) for one in names]


def _holds_rows(name: str) -> bool:
    return find_suffix(Path(name)) in ROW_SUFFIXES


def _connect(url: str) -> tuple[Any, str]:
    from pyarrow import ArrowInvalid, fs

    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except (ArrowInvalid, OSError) as exc:
        name = PurePosixPath(urlsplit(url).path).name
        reason = _shorten(exc).replace(url, "the URL")  # which may have credentials
        raise DataError(f"{name!r} cannot be reached: {reason}") from exc
    return filesystem, path


def _get_info(url: str, name: str) -> Any:
    from pyarrow import fs

    filesystem, path = _connect(url)
    info = _list_infos(filesystem, path, name)[0]
    if info.type != fs.FileType.File:
        raise DataError(f"no file {name!r} in the bucket {path.split('/')[0]!r}")
    return info


def _list_infos(filesystem: Any, places: Any, name: str) -> list[Any]:
    try:
        found = filesystem.get_file_info([places] if isinstance(places, str) else places)
    except OSError as exc:
        raise DataError(f"{name!r} cannot be read from its bucket: {_shorten(exc)}") from exc
    return list(found)


def _shorten(exc: BaseException) -> str:
    return (str(exc).splitlines() or [type(exc).__name__])[0][:300]
