"""Removal of old temporary files that killed processes left behind.

Other leftovers are whole folders, which have an owner (`storage.scratch`) or a name that marks them
as deleted (`storage.tombstones`).
"""

import logging
import os
import re
import stat
import time
from pathlib import Path

from storage.layout import StorageLayout
from storage.writable_check import PROBE_PREFIX

logger = logging.getLogger(__name__)

MIN_AGE_S = 3600.0
"""A temporary file without changes for this time has no living writer: writing takes moments."""

_RANDOM = "[a-z0-9_]{8}"
"""The suffix of names that `tempfile` makes."""

# The files that are replaced as a whole (`durable.write_bytes`), by folder below the storage root.
# Folders under construction are not listed, because they are removed as a whole.
_REPLACED_FILES = {
    "": r"aliases\.json|aliases\.copy\.json|keys\.json|keys\.required",
    "files/[!.]*": r"file\.json|check\.json|data_.*",
    "runs/[!.]*": r"run\.json|spec\.json|metrics\.jsonl|pause|progress\.json|refusal\.json",
    "evaluations/[!.]*": r"evaluation\.json",
    "runs/[!.]*/data": r"summary\.json",
    "runs/[!.]*/exports": r".*\.json",
    "runs/[!.]*/ray/checkpoints": r"last_complete\.json",
    "runs/[!.]*/ray/checkpoints/checkpoint_*": r"manifest-[0-9]{5}\.json",
}


def remove_old_temporaries(layout: StorageLayout) -> None:
    """Remove temporary files that killed processes left from file replacements and disk probes.

    Only files with the names of such temporary files that are older than `MIN_AGE_S` are removed.
    Folders or files that cannot be read or removed are logged and skipped.
    """
    _remove_old_files(layout.root, re.compile(rf"{re.escape(PROBE_PREFIX)}{_RANDOM}"))
    for place, names in _REPLACED_FILES.items():
        pattern = re.compile(rf"\.(?:{names})\.{_RANDOM}")
        for folder in layout.root.glob(place) if place else [layout.root]:
            _remove_old_files(folder, pattern)


def _remove_old_files(folder: Path, pattern: re.Pattern[str]) -> None:
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if pattern.fullmatch(entry.name)]
        for entry in found:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > MIN_AGE_S:
                os.unlink(entry)
                logger.info("removed %s, which a killed process left", entry.path)
    except (FileNotFoundError, NotADirectoryError):  # deleted meanwhile, or a stray file
        return
    except OSError as exc:
        logger.warning("leftovers in %s cannot be removed: %s", folder, exc)
