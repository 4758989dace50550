"""The claim of one queue to the runs of a storage root: a file lock."""

import logging
import threading
from collections.abc import Callable
from typing import IO

from apps.errors import ApiError
from storage.layout import StorageLayout
from storage.locks import try_lock

logger = logging.getLogger(__name__)


class StorageClaim:
    """Locks the storage root for this queue, and calls `take_over` once it has the lock.

    `take_over` is called again after a call that raised.
    """

    def __init__(self, layout: StorageLayout, take_over: Callable[[], None]) -> None:
        self._layout = layout
        self._take_over = take_over
        self._guard = threading.Lock()
        self._file: IO[str] | None = None
        self._has_taken_over = False

    def close(self) -> None:
        """Release the storage, so that another queue can take it over."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def check(self) -> None:
        """Raise `ApiError` 503 if another queue locked the storage; the first call may be slow."""
        if not self.acquire():
            raise ApiError(503, "another application manages the jobs of this storage")

    def acquire(self) -> bool:
        """Return whether this queue has the storage's lock, taking it over if it is free.

        The kernel releases the locks of dead processes.
        """
        with self._guard:
            if self._file is None:
                file = self._layout.queue_lock.open("w")
                if not try_lock(file):
                    file.close()
                    logger.warning("another application manages the runs here: %s", file.name)
                    return False
                self._file = file
            if not self._has_taken_over:  # also after an attempt that failed
                self._take_over()
                self._has_taken_over = True
        return True
