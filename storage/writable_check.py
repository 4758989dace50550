"""A check that a storage root is writable and has enough free space."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

PROBE_PREFIX = ".probe-"
"""Prefix of the name of the probe file."""
_PROBE_BYTES = 4096


def check_writable(root: Path, min_free_bytes: int) -> None:
    """Write a small file in `root` and remove it.

    Raises `OSError` if that fails, for example on a read-only or broken disk, or if fewer than
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
