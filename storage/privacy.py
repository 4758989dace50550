"""Files that only their owner can read: directories 0700, files 0600."""

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

PRIVATE_UMASK = 0o077
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_files_private() -> None:
    """Have this process, and those that it starts, create files for their owner only.

    Every process that writes below the storage root calls this where it starts.
    """
    os.umask(PRIVATE_UMASK)


def close_to_others(path: Path) -> None:
    """Remove every permission of others from a file or directory; log where that is refused."""
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


def close_tree_to_others(root: Path) -> None:
    """Remove every permission of others from a directory and all that is in it."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            close_to_others(path)
