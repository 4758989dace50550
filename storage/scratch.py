"""Scratch folders to build something in; leftovers of dead processes are removed.

Each folder has a lock file that its process locks. The lock ends with the process: an
unlocked folder has no owner, and the next scratch folder with the same prefix removes it. A folder
without a lock file is removed only if nothing in it has changed for an hour, since on a shared file
system the lock file may be invisible for a moment.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage.locks import lock_open_file, try_lock

_LOCK_NAME = ".lock"
_CONTENT_NAME = "content"
_NEW_PREFIX = ".new-"
_LOCKED_WITHIN_S = 3600.0  # locking takes a moment; older unlocked folders are leftovers
_UNLOCKED_FOR_S = 3600.0


class ScratchFolder:
    """A new folder `path` inside a locked folder whose name begins with `prefix`.

    `prefix` usually begins with a dot. Content that is moved out before `remove` is kept.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned_scratch(parent, prefix)
        unlocked = Path(tempfile.mkdtemp(dir=parent, prefix=f"{_NEW_PREFIX}{prefix}"))
        self._lock = (unlocked / _LOCK_NAME).open("w")
        lock_open_file(self._lock)
        # Rename only after locking: an unlocked folder with the final name counts as ownerless.
        self._root = unlocked.rename(parent / unlocked.name.removeprefix(_NEW_PREFIX))
        self.path = self._root / _CONTENT_NAME
        self.path.mkdir()

    @property
    def lock_descriptor(self) -> int:
        """The open lock file; a process that inherits it keeps the folder from being removed."""
        return self._lock.fileno()

    def remove_content(self) -> None:
        """Remove the content; the folder keeps its owner."""
        with suppress(RecursionError):
            shutil.rmtree(self.path, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder and its content."""
        try:
            with suppress(OSError, RecursionError):
                _remove(self._root)
        finally:
            self._lock.close()


@contextmanager
def build_in_scratch(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new scratch folder; remove it at the end unless it was moved away."""
    scratch = ScratchFolder(parent, prefix)
    try:
        yield scratch.path
    finally:
        scratch.remove()


def list_scratch(parent: Path, prefix: str) -> list[str]:
    """Return the names of the scratch folders that a process owns now."""
    names = []
    for root in sorted(parent.glob(f"{prefix}*")):
        with suppress(OSError), (root / _LOCK_NAME).open("rb") as lock:
            if not try_lock(lock, is_shared=True):
                names.append(root.name)
    return names


def remove_abandoned_scratch(parent: Path, prefix: str) -> None:
    """Remove the scratch folders of processes that have ended."""
    for unlocked in parent.glob(f"{_NEW_PREFIX}{prefix}*"):
        with suppress(OSError, RecursionError):
            if time.time() - unlocked.stat().st_mtime > _LOCKED_WITHIN_S:
                shutil.rmtree(unlocked, ignore_errors=True)
    for root in parent.glob(f"{prefix}*"):
        with suppress(OSError, RecursionError):  # RecursionError: too deep for rmtree
            if (root / _LOCK_NAME).exists():
                with (root / _LOCK_NAME).open("r+") as lock:
                    if try_lock(lock):
                        _remove(root)
            elif root.is_dir() and time.time() - _find_last_change(root) > _UNLOCKED_FOR_S:
                shutil.rmtree(root, ignore_errors=True)
            elif root.is_dir():
                root.rmdir()  # succeeds if empty: its owner was killed while removing it


def _remove(root: Path) -> None:
    """Remove a folder, its lock file last, so that a partial removal is recognized as ownerless."""
    for entry in root.iterdir():
        if entry.name != _LOCK_NAME:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
    (root / _LOCK_NAME).unlink(missing_ok=True)
    root.rmdir()


def _find_last_change(root: Path) -> float:
    """Return the latest modification time of a folder and its entries, in Unix seconds."""
    with os.scandir(root) as entries:
        return max(
            root.stat().st_mtime,
            *(entry.stat(follow_symlinks=False).st_mtime for entry in entries),
            0.0,
        )
