"""The events of a run, a file of JSON lines."""

import time
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from storage import durable
from training.run.event_codes import EventCode

EventLevel = Literal["info", "warn", "error"]

MAX_EVENTS_BYTES = 4_000_000
"""Size of a run's events from which no more are added; for warnings and errors, twice that."""

_MAX_EVENT_DIGITS = 18


class StoredEvent(TypedDict):
    """An event as a line of the file."""

    created_at: int
    level: EventLevel
    message: str
    data: dict[str, Any]
    code: NotRequired[EventCode]


class RunEvent(StoredEvent):
    """An event with its id, which contains its line number."""

    id: str


class RunEvents:
    """Adds and reads the events of the run `run_id`."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self._run_id = run_id

    def add(
        self,
        message: str,
        *,
        level: EventLevel = "info",
        code: EventCode | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Append one event: a message, figures in `data`, and a `code` for programs.

        Events of level 'info' are dropped once there are `MAX_EVENTS_BYTES` of events, which a last
        event reports; other events are dropped at twice that size. So pausing and resuming a run
        repeatedly does not fill the disk. Raises `OSError` on a full disk.
        """
        size_bytes = self._measure()
        if size_bytes >= (MAX_EVENTS_BYTES if level == "info" else 2 * MAX_EVENTS_BYTES):
            return
        self._append(message, level, data or {}, code)
        if size_bytes < MAX_EVENTS_BYTES <= self._measure():
            self._append(
                f"The events of this job have reached {MAX_EVENTS_BYTES / 1e6:g} MB; from here on "
                "only warnings and errors are added. Its log and metrics continue",
                "warn",
                {"max_bytes": MAX_EVENTS_BYTES},
            )

    def add_once(
        self,
        message: str,
        *,
        level: EventLevel = "info",
        code: EventCode | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Add an event unless it equals the last one, so that its caller can be repeated."""
        events = self.read()
        if not events or (events[-1]["message"], events[-1]["data"]) != (message, data or {}):
            self.add(message, level=level, code=code, data=data)

    def read(self) -> list[RunEvent]:
        """Read all events, oldest first."""
        return self.number(durable.read_json_lines(self.path), 1)

    def number(self, lines: list[StoredEvent], first: int) -> list[RunEvent]:
        """Add ids to consecutive lines of the file; `first` is the first line's number."""
        return [{"id": self._name(number), **event} for number, event in enumerate(lines, first)]

    def find_number(self, event_id: str) -> int | None:
        """Return the line number of an event, from 1; None if the id is not of this run's events.

        An event with this id need not exist.
        """
        digits = event_id.rpartition("-")[2]
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_EVENT_DIGITS):
            return None
        number = int(digits)
        return number if number > 0 and event_id == self._name(number) else None

    def _append(
        self, message: str, level: EventLevel, data: dict[str, Any], code: EventCode | None = None
    ) -> None:
        event: StoredEvent = {
            "created_at": int(time.time()),
            "level": level,
            "message": message,
            "data": data,
        }
        if code is not None:
            event["code"] = code
        durable.append_json_line(self.path, event)

    def _measure(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def _name(self, number: int) -> str:
        return f"ftevent-{self._run_id}-{number:06d}"
