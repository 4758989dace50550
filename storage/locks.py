"""Holding a file that others might remove; the operating system lets go when a process ends."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from storage.regular_file import open_regular


class HeldError(RuntimeError):
    """Somebody holds what was to be removed."""


def hold_shared(file: Path) -> IO[bytes]:
    """Hold a file beside any number of others, until the returned file is closed.

    Raises `FileNotFoundError` if it is gone.
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
    """Hold a file that nobody else holds, while the body removes it.

    Raises `HeldError`, or `FileNotFoundError` if it is gone.
    """
    with file.open("r+b") as held:  # over NFS only who may write can hold it alone
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(f"{file.parent.name} is in use") from None
        _check_same(held, file)
        yield


@contextmanager
def take_turn(file: Path, *, waits: bool = True) -> Iterator[None]:
    """Wait until nobody else has the turn that a file stands for; the file is made if need be.

    One who does not wait gets `HeldError` where somebody else has it.
    """
    with file.open("w") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            raise HeldError(f"somebody else has the turn of {file.name}") from None
        yield  # let go when the file closes


def _check_same(held: IO[bytes], file: Path) -> None:
    """Raise `FileNotFoundError` if the file was removed, or another put in its place, meanwhile."""
    if not os.path.samestat(os.fstat(held.fileno()), file.stat()):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
