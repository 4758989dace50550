"""Permissions that restrict files to their owner: directories 0700, files 0600."""

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

PRIVATE_UMASK = 0o077
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_files_private() -> None:
    """Set the umask so that this process and its children create files for their owner only.

    Every process that writes below the storage root must call this at its start.
    """
    os.umask(PRIVATE_UMASK)


def make_private(path: Path) -> None:
    """Remove all permissions of group and others from a path; log if that is not permitted."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & _OTHERS:
        return
    try:
        path.chmod(mode & ~_OTHERS)
    except PermissionError:
        logger.warning(
            "%s has mode %04o, so other users of this machine can read it, and it is not ours to "
            "change; have its owner run: chmod go-rwx %s",
            path,
            mode,
            path,
        )


def make_tree_private(root: Path) -> None:
    """Remove all permissions of group and others from a directory and its content."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            make_private(path)
