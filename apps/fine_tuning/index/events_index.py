"""Index of event offsets in `events.jsonl`, so that the newest are read without the rest.

An index grows with its file: each call reads only what was added since the previous one. It takes 8
bytes per event, and a replica keeps the indexes of the most recently requested runs.
"""

import json
import logging
import os
from array import array
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple, cast

from apps.errors import ApiError
from storage.regular_file import open_regular
from training.run.folder import RunFolder
from training.run.run_events import RunEvent, StoredEvent

logger = logging.getLogger(__name__)

_MAX_INDEXES = 32


class EventPage(NamedTuple):
    """Events of a run, newest first, and whether older events of the requested range remain."""

    events: list[RunEvent]
    has_more: bool


class EventsReader:
    """Reads the newest events of runs; safe to use from several threads."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[Path, _EventIndex] = OrderedDict()
        self._lock = Lock()

    def read_newest(
        self,
        run: RunFolder,
        limit: int,
        after: str | None = None,
        newer_than: str | None = None,
    ) -> EventPage:
        """Return the newest events, at most `limit`, with the ids of `RunEvents.read`.

        Only events older than that with the id `after`, the last one of the previous page, and
        newer than that with the id `newer_than` are returned. Raises `ApiError` 404 for an id that
        no event of the run has.
        """
        with self._lock:
            index = self._indexes.pop(run.events.path, None) or _EventIndex()
            self._indexes[run.events.path] = index
            if len(self._indexes) > _MAX_INDEXES:
                self._indexes.popitem(last=False)
        try:
            with index.lock, open_regular(run.events.path) as file:
                num_events = index.update(file)
                begin, end = _find_range(run, num_events, after, newer_than)
                first = max(begin, end - limit)
                lines = index.read(file, first, end)
        except FileNotFoundError:  # before the first event
            _find_range(run, 0, after, newer_than)
            return EventPage([], has_more=False)
        return EventPage(run.events.number(lines, first + 1)[::-1], has_more=first > begin)


def _find_range(
    run: RunFolder, num_events: int, after: str | None, newer_than: str | None
) -> tuple[int, int]:
    """Return the requested range of events, counted from 0: its begin and its exclusive end."""
    end = num_events if after is None else _find_number(run, num_events, after, "after") - 1
    begin = 0
    if newer_than is not None:
        begin = _find_number(run, num_events, newer_than, "newer_than")
    return min(begin, end), end


def _find_number(run: RunFolder, num_events: int, event_id: str, param: str) -> int:
    number = run.events.find_number(event_id)
    if number is None or number > num_events:
        message = f"{param} is {event_id!r}, expected the id of an event of job {run.path.name!r}"
        raise ApiError(404, message, param=param, code="not_found")
    return number


class _EventIndex:
    """Byte offsets of the events in one file."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._clear(0)

    def update(self, file: BinaryIO) -> int:
        """Index the complete lines that were added, or all lines if the file was replaced.

        Returns the number of events.
        """
        found = os.fstat(file.fileno())
        if found.st_ino != self._inode or found.st_size < self._end:
            self._clear(found.st_ino)
        file.seek(self._end)
        while (line := file.readline()).endswith(b"\n"):
            if _parse(line) is not None:
                self._offsets.append(self._end)
            elif line.strip():
                logger.warning("a line of an events file is damaged and is skipped")
            self._end += len(line)
        return len(self._offsets)

    def read(self, file: BinaryIO, first: int, end: int) -> list[StoredEvent]:
        """Read the events from `first` to before `end`, both counted from 0, oldest first."""
        if first >= end:
            return []
        file.seek(self._offsets[first])
        stop = self._offsets[end] if end < len(self._offsets) else self._end
        content = file.read(stop - self._offsets[first])
        return [event for line in content.splitlines() if (event := _parse(line)) is not None]

    def _clear(self, inode: int) -> None:
        self._inode = inode
        self._end = 0
        self._offsets = array("q")


def _parse(line: bytes) -> StoredEvent | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return cast(StoredEvent, event) if isinstance(event, dict) else None
