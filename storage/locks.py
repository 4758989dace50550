"""Advisory file locks; the operating system releases them when a process ends.

This is the only module that calls `flock`.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from storage.regular_file import open_regular


class LockedError(RuntimeError):
    """Another process or thread has locked the file."""


def lock_shared(file: Path) -> IO[bytes]:
    """Lock an existing file, shared with others, until the returned file is closed.

    Raises `FileNotFoundError` if the file does not exist.
    """
    locked = open_regular(file)
    try:
        fcntl.flock(locked, fcntl.LOCK_SH)
        _check_same(locked, file)
    except BaseException:
        locked.close()
        raise
    return locked


@contextmanager
def lock_existing(file: Path) -> Iterator[None]:
    """Lock an existing file exclusively during the body, which may remove the file.

    Raises `LockedError` if the file is locked, and `FileNotFoundError` if it does not exist.
    """
    with file.open("r+b") as locked:  # over NFS an exclusive lock needs a writable file
        if not try_lock(locked):
            raise LockedError(f"{file.parent.name} is in use")
        _check_same(locked, file)
        yield


@contextmanager
def lock_exclusive(file: Path, *, waits: bool = True) -> Iterator[None]:
    """Lock a file exclusively during the body; the file is created if it does not exist.

    Waits for the lock; without `waits`, raises `LockedError` if the file is locked.
    """
    with file.open("w") as locked:
        if waits:
            lock_open_file(locked)
        elif not try_lock(locked):
            raise LockedError(f"{file.name} is locked by another process or thread")
        yield  # closing the file releases the lock


def lock_open_file(file: IO[bytes] | IO[str]) -> None:
    """Lock an open file exclusively until it is closed; wait for the lock."""
    fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: IO[bytes] | IO[str], *, is_shared: bool = False) -> bool:
    """Lock an open file until it is closed; return False if it is locked elsewhere."""
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_same(locked: IO[bytes], file: Path) -> None:
    """Raise `FileNotFoundError` if the file was removed or replaced after it was opened."""
    if not os.path.samestat(os.fstat(locked.fileno()), file.stat()):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
