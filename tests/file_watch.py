"""Detection of whether any process opens a file, through any library."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_OPEN = 0x20


class FileWatch:
    """A watch that reports whether a file was opened since the last query."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def was_opened(self) -> bool:
        """Return whether the file was opened since the last call."""
        try:
            return bool(os.read(self._descriptor, 1 << 16))
        except BlockingIOError:  # no events
            return False


@contextmanager
def watch_file(path: Path) -> Iterator[FileWatch]:
    """Watch a file with inotify, because Rust libraries raise no Python audit events."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    try:
        assert libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_OPEN) >= 0
        yield FileWatch(descriptor)
    finally:
        os.close(descriptor)
