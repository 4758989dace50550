"""Deleting a folder: it is renamed to a hidden name first, and only such a name is ever removed.

So a folder disappears at once and as a whole, and what is half written, or cannot be read for a
moment, is never taken for deleted.
"""

import logging
import os
import shutil
from pathlib import Path

from storage import durable
from storage.layout import new_id

logger = logging.getLogger(__name__)

_PREFIX = ".deleted"


def bury_folder(folder: Path) -> Path:
    """Rename a folder to a tombstone beside it; returns that, which `remove_tombstones` removes."""
    tombstone = folder.with_name(new_id(_PREFIX))
    os.rename(folder, tombstone)
    durable.fsync_directory(folder.parent)
    return tombstone


def remove_tombstones(parent: Path) -> None:
    """Remove every tombstone in a folder, also those of processes that were killed meanwhile."""
    for tombstone in parent.glob(f"{_PREFIX}-*"):
        shutil.rmtree(tombstone, onerror=_log_leftover)


def _log_leftover(function: object, path: str, failure: tuple[type, BaseException, object]) -> None:  # noqa: ARG001 - the signature of shutil.rmtree
    if not isinstance(failure[1], FileNotFoundError):  # removed by another process
        logger.warning("%s cannot be removed: %s", path, failure[1])
