"""Local disk for shards on their way to storage, of which a dead process leaves nothing for long.

Every folder holds a lock of the operating system's, which ends with its process.
"""

import fcntl
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "tuneserve-shards-"
_LOCK_NAME = ".lock"


class StagingFolder:
    """A new folder on local disk for one checkpoint's shards; `path` is where they go."""

    def __init__(self) -> None:
        building = Path(tempfile.mkdtemp(prefix="tuneserve-building-"))
        self._lock = (building / _LOCK_NAME).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Under its lasting name only now: what has that name and is not locked has no owner.
        self._root = building.rename(
            building.with_name(building.name.replace("tuneserve-building-", _PREFIX))
        )
        self.path = self._root / "shards"
        self.path.mkdir()

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._lock.close()


def sweep_staging() -> None:
    """Remove the folders of processes that are gone, of whatever run."""
    for root in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), (root / _LOCK_NAME).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(root, ignore_errors=True)
