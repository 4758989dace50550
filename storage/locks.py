"""Advisory file locks (flock); the operating system releases them when a process ends."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from storage.regular_file import open_regular


class HeldError(RuntimeError):
    """Another process or thread holds the lock."""


def hold_shared(file: Path) -> IO[bytes]:
    """Hold a shared lock on a file until the returned file is closed.

    Raises `FileNotFoundError` if the file does not exist.
    """
    held = open_regular(file)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        _check_same(held, file)
    except BaseException:
        held.close()
        raise
    return held


@contextmanager
def hold_alone(file: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file during the body, which may remove the file.

    Raises `HeldError` if the file is locked, and `FileNotFoundError` if it does not exist.
    """
    with file.open("r+b") as held:  # over NFS an exclusive lock needs a writable file
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(f"{file.parent.name} is in use") from None
        _check_same(held, file)
        yield


@contextmanager
def take_turn(file: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created if needed, during the body.

    Waits for the lock; without `waits`, raises `HeldError` if it is held elsewhere.
    """
    with file.open("w") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            raise HeldError(f"somebody else has the turn of {file.name}") from None
        yield  # closing the file releases the lock


def _check_same(held: IO[bytes], file: Path) -> None:
    """Raise `FileNotFoundError` if the file was removed or replaced after it was opened."""
    if not os.path.samestat(os.fstat(held.fileno()), file.stat()):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
