"""What became of each move of an alias, replica by replica: the events of hand-overs."""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from storage import durable

Outcome = Literal["moved", "draining", "postponed", "refused"]


@dataclass(frozen=True)
class HandoverEvent:
    """Something that happened on one replica when an alias moved; `at` is in Unix seconds.

    moved      the new model answers now
    draining   memory does not hold both, so the old model ends its answers before the new is loaded
    postponed  there is no room for the new model now, or its process ended while it loaded; the old
               one goes on, and it is tried again
    refused    the new model cannot be loaded; the old one goes on
    """

    alias: str
    outcome: Outcome
    model: str
    before: str | None
    message: str
    at: int = field(default_factory=lambda: int(time.time()))


class HandoverLog:
    """The events of all replicas, in one file of JSON lines that any of them may write to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, event: HandoverEvent) -> None:
        """Write an event down."""
        durable.append_json_line(self._path, asdict(event))

    def read(self, alias: str) -> list[HandoverEvent]:
        """Return the events of one alias, oldest first."""
        events = (HandoverEvent(**line) for line in durable.read_json_lines(self._path))
        return [event for event in events if event.alias == alias]
