"""Folders that something is built in, of which a dead process leaves nothing for long.

Each holds a lock of the operating system's, which ends with its process: a folder that is not
locked has no owner, and the next one of its name removes it. One without a lock file, which may be
unseen for a moment on a shared file system, is removed only once nothing in it changed for an hour.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK_NAME = ".lock"
_CONTENT_NAME = "content"
_NEW_PREFIX = ".new-"
_LOCKED_WITHIN_S = 3600.0  # a moment, unless its process was killed in it
_UNLOCKED_FOR_S = 3600.0


class ScratchFolder:
    """A new folder `path`, until it is removed; its name begins with `prefix`, hidden as a rule.

    What was renamed away from inside stays.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        sweep_scratch(parent, prefix)
        unlocked = Path(tempfile.mkdtemp(dir=parent, prefix=f"{_NEW_PREFIX}{prefix}"))
        self._lock = (unlocked / _LOCK_NAME).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Under its lasting name only now: what has that name and is not locked has no owner.
        self._root = unlocked.rename(parent / unlocked.name.removeprefix(_NEW_PREFIX))
        self.path = self._root / _CONTENT_NAME
        self.path.mkdir()

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        try:
            with suppress(OSError, RecursionError):
                _remove(self._root)
        finally:
            self._lock.close()


@contextmanager
def build_in_scratch(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder to build something in, removed at the end unless it was renamed away."""
    scratch = ScratchFolder(parent, prefix)
    try:
        yield scratch.path
    finally:
        scratch.remove()


def sweep_scratch(parent: Path, prefix: str) -> None:
    """Remove the folders of processes that are gone."""
    for unlocked in parent.glob(f"{_NEW_PREFIX}{prefix}*"):
        with suppress(OSError, RecursionError):
            if time.time() - unlocked.stat().st_mtime > _LOCKED_WITHIN_S:
                shutil.rmtree(unlocked, ignore_errors=True)
    for root in parent.glob(f"{prefix}*"):
        with suppress(OSError, RecursionError):  # of folders deeper than rmtree can go
            if (root / _LOCK_NAME).exists():
                with (root / _LOCK_NAME).open("r+") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(root)
            elif root.is_dir() and time.time() - _find_last_change(root) > _UNLOCKED_FOR_S:
                shutil.rmtree(root, ignore_errors=True)
            elif root.is_dir():
                root.rmdir()  # if it is empty: its owner was killed while removing it


def _remove(root: Path) -> None:
    """Remove a folder, its lock last: what is left by a kill still shows that it has no owner."""
    for entry in root.iterdir():
        if entry.name != _LOCK_NAME:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
    (root / _LOCK_NAME).unlink(missing_ok=True)
    root.rmdir()


def _find_last_change(root: Path) -> float:
    """Return when a folder, or one directly in it, last changed, in Unix seconds."""
    with os.scandir(root) as entries:
        return max(
            root.stat().st_mtime,
            *(entry.stat(follow_symlinks=False).st_mtime for entry in entries),
            0.0,
        )
