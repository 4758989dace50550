"""Deletion of folders: a folder is first renamed to a tombstone, and only tombstones are removed.

A tombstone has a hidden name. A folder thus disappears atomically, and a folder that is partially
written or temporarily unreadable is never mistaken for a deleted one.
"""

import logging
import os
import shutil
from pathlib import Path

from storage import durable
from storage.layout import new_id

logger = logging.getLogger(__name__)

_PREFIX = ".deleted"


def rename_to_tombstone(folder: Path) -> Path:
    """Rename a folder to a tombstone in the same parent and return its path.

    `remove_tombstones` removes it.
    """
    tombstone = folder.with_name(new_id(_PREFIX))
    os.rename(folder, tombstone)
    durable.fsync_directory(folder.parent)
    return tombstone


def remove_tombstones(parent: Path) -> None:
    """Remove every tombstone in a folder, including those that killed processes left."""
    for tombstone in parent.glob(f"{_PREFIX}-*"):
        shutil.rmtree(tombstone, onerror=_log_leftover)


def _log_leftover(function: object, path: str, failure: tuple[type, BaseException, object]) -> None:  # noqa: ARG001 - the signature of shutil.rmtree
    if not isinstance(failure[1], FileNotFoundError):  # removed by another process
        logger.warning("%s cannot be removed: %s", path, failure[1])
