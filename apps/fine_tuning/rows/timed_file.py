"""Files of rows that are read until a deadline, whatever they contain."""

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from training.data.files.kinds import FileKind, Record
from training.data.readers import RowFile

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RowsTimeoutError(TimeoutError):
    """The deadline has passed: a file may have no row in a billion blank lines."""


@dataclass
class TimedRowFile(RowFile):
    """A file of rows whose reads raise `TimeoutError` after `deadline`, a monotonic time."""

    def open_file(self) -> BinaryIO:
        """Open the file as it is stored."""
        return self._limit(super().open_file())

    def read_kind(self, kind: FileKind, file: BinaryIO, sample: bytes) -> Iterator[Record]:
        """Yield the records of an open file."""
        return super().read_kind(kind, self._limit(file), sample)

    def _limit(self, file: BinaryIO) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_TimedBytes(file, self.deadline), 1 << 16))


class _TimedBytes(io.RawIOBase):
    """The bytes of another file, until a deadline."""

    def __init__(self, file: BinaryIO, deadline: float) -> None:
        super().__init__()
        self._file = file
        self._deadline = deadline

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return whether the other file can seek."""
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seek in the other file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position in the other file."""
        return self._file.tell()

    def readinto(self, buffer: "Buffer") -> int:
        """Read from the other file; raises `RowsTimeoutError` after the deadline."""
        if time.monotonic() > self._deadline:
            raise RowsTimeoutError
        view = memoryview(buffer)
        chunk = self._file.read(len(view))
        view[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        """Close both files."""
        self._file.close()
        super().close()
