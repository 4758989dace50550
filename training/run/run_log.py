"""The size-bounded log of a run: `log.txt`, and the part before it.

Any process of the run appends lines. At `MAX_PART_BYTES` the file is renamed to
`log.<begin>-<end>.txt`, which replaces the part before it. Both numbers are offsets that count all
bytes ever written, so an offset stays valid when a part is removed.
"""

import logging
import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from storage.locks import LockedError, lock_exclusive
from storage.regular_file import open_regular

MAX_PART_BYTES = 5_000_000
_READ_BYTES = 1 << 20
_OLD_PART = re.compile(r"log\.([0-9]+)-([0-9]+)\.txt")


class LogRange(NamedTuple):
    """The readable bytes of a log, as offsets; `end` is the offset after the last byte."""

    begin: int
    end: int


class _OldPart(NamedTuple):
    begin: int
    end: int
    path: Path


class RunLog:
    """One run's log; `path` is the path of its newest part."""

    def __init__(self, path: Path, max_part_bytes: int = MAX_PART_BYTES) -> None:
        self._path = path
        self._max_part_bytes = max_part_bytes

    def append(self, line: str) -> None:
        """Append a line in a single write; raises `OSError` if that fails.

        A line that another process appends during the rename is in the older part but is never
        read.
        """
        content = f"{line}\n".encode(errors="backslashreplace")
        with self._path.open("ab", buffering=0) as file:
            file.write(content)
            is_full = file.tell() >= self._max_part_bytes
        if is_full:
            self._begin_part()

    def measure(self) -> LogRange:
        """Return the range of bytes that can be read now."""
        with self._open_newest() as (old, begin, newest):
            size = os.fstat(newest.fileno()).st_size if newest else 0
            return LogRange(old[0].begin if old else begin, begin + size)

    def read(self, begin: int, end: int | None = None) -> Generator[bytes, None, None]:
        """Yield the bytes from offset `begin` up to `end`, or up to the end at the time of reading.

        The iteration stops once the next byte has been removed.
        """
        while end is None or begin < end:
            piece = self._read_piece(begin, _READ_BYTES if end is None else end - begin)
            if not piece:
                return
            begin += len(piece)
            yield piece

    def _read_piece(self, offset: int, max_bytes: int) -> bytes:
        """Read some bytes at an offset; empty if they are not written yet or have been removed."""
        num_bytes = min(max_bytes, _READ_BYTES)
        with self._open_newest() as (old, begin, newest):
            if offset >= begin:
                if newest is None:
                    return b""
                newest.seek(offset - begin)
                return newest.read(num_bytes)
        for part in old:
            if part.begin <= offset < part.end:
                with suppress(FileNotFoundError), open_regular(part.path) as file:
                    file.seek(offset - part.begin)
                    return file.read(min(num_bytes, part.end - offset))
        return b""

    @contextmanager
    def _open_newest(self) -> Iterator[tuple[list[_OldPart], int, BinaryIO | None]]:
        """Yield the older parts, and the newest one opened with the offset of its first byte."""
        while True:
            try:
                newest = open_regular(self._path)
            except FileNotFoundError:  # no line yet, or none since a part was begun
                old = self._list_old()
                yield old, old[-1].end if old else 0, None
                return
            with newest:
                old = self._list_old()
                if self._is_newest(newest):  # else it was renamed during the listing
                    yield old, old[-1].end if old else 0, newest
                    return

    def _is_newest(self, file: BinaryIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def _begin_part(self) -> None:
        """Rename the newest part and remove older ones; skipped if another process is doing so."""
        lock = self._path.with_name(f".{self._path.name}.lock")
        with suppress(LockedError), lock_exclusive(lock, waits=False):
            end = self.measure().end
            old = self._list_old()
            begin = old[-1].end if old else 0
            if end - begin < self._max_part_bytes:  # another process was first
                return
            self._path.rename(self._path.with_name(f"log.{begin}-{end}.txt"))
            for part in old:
                part.path.unlink()

    def _list_old(self) -> list[_OldPart]:
        """List the older parts, oldest first; empty for a run that has been deleted."""
        try:
            names = os.listdir(self._path.parent)
        except FileNotFoundError:
            return []
        return sorted(
            _OldPart(int(found[1]), int(found[2]), self._path.with_name(name))
            for name in names
            if (found := _OLD_PART.fullmatch(name))
        )


class RunLogHandler(logging.Handler):
    """A logging handler that appends a process's records to the log of a run."""

    def __init__(self, log: RunLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record; report a failure on standard error, as Python's own handlers do."""
        try:
            self._log.append(self.format(record))
        except Exception:  # noqa: BLE001 - logging never fails the caller
            self.handleError(record)


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append this process's log records to a run's log; only for processes of a single run."""
    handler = RunLogHandler(RunLog(path))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
