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
    extra = os.O_NONBLOCK if follow_links else os.O_NONBLOCK | os.O_NOFOLLOW

    def open_at_once(name: str, flags: int) -> int:
        return os.open(name, flags | extra)  # opening a FIFO without O_NONBLOCK would block

    file = open(path, "rb", opener=open_at_once)  # noqa: SIM115 - for the caller to close
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))  # noqa: TRY301 - closes it
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path) -> bytes:
    """Read a whole file; raises as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()
