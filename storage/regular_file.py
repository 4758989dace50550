"""Opens regular files only: a FIFO or a device in place of a file must not block its reader."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | Path, *, follow_links: bool = True) -> BinaryIO:
    """Open a file for reading.

    Raises `OSError` as `open` does, with `errno.EINVAL` for anything but a regular file, and with
    `errno.ELOOP` for a link if links are not followed.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # without it, opening a FIFO would block
    descriptor = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_regular(path: Path) -> bytes:
    """Read a whole file; raises as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()
