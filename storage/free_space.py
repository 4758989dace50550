"""Whether a storage root can be written to, with room to spare."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

PROBE_PREFIX = ".probe-"
"""Begins the name of the file that is written."""
_PROBE_BYTES = 4096


def check_writable(root: Path, min_free_bytes: int) -> None:
    """Write a small file below `root` and remove it.

    Raises `OSError` if that fails, as on a read-only or broken disk, or if fewer than
    `min_free_bytes` are free.
    """
    with tempfile.NamedTemporaryFile(dir=root, prefix=PROBE_PREFIX) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
    free_bytes = shutil.disk_usage(root).free
    if free_bytes < min_free_bytes:
        raise OSError(
            errno.ENOSPC,
            f"{free_bytes:,} bytes are free, expected at least {min_free_bytes:,} "
            f"({os.strerror(errno.ENOSPC)})",
            str(root),
        )
