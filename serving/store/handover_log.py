"""Hand-over events: the outcome of each move of an alias on each replica."""

import logging
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from storage import durable
from storage.locks import lock_exclusive

logger = logging.getLogger(__name__)

MAX_BYTES = 10_000_000
Outcome = Literal["moved", "draining", "postponed", "refused"]


@dataclass(frozen=True)
class HandoverEvent:
    """An event on one replica when an alias moved; `at` is in Unix seconds.

    moved      the new model serves the alias now
    draining   memory does not fit both models, so the old model finishes its running requests
               before the new model is loaded
    postponed  there is no capacity for the new model now, or its process ended while it loaded; the
               old model keeps serving, and the hand-over is retried
    refused    the new model cannot be loaded; the old model keeps serving
    """

    alias: str
    outcome: Outcome
    model: str
    before: str | None
    message: str
    at: int = field(default_factory=lambda: int(time.time()))


class HandoverLog:
    """The events of all replicas in one JSON Lines file, which every replica appends to.

    When the file reaches `max_bytes`, it replaces the previous file (`.1`) and a new one is begun.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._older = path.with_suffix(f".1{path.suffix}")
        self._max_bytes = max_bytes

    def add(self, event: HandoverEvent) -> None:
        """Append an event."""
        durable.append_json_line(self._path, asdict(event))
        if self._is_full():
            with lock_exclusive(self._path.with_name(f".{self._path.name}.lock")):
                if self._is_full():  # another replica may have been first
                    self._path.replace(self._older)

    def read(self, alias: str) -> list[HandoverEvent]:
        """Return the events of one alias that are still on record, oldest first."""
        lines = [
            line for path in (self._older, self._path) for line in durable.read_json_lines(path)
        ]
        events = [event for line in lines if (event := self._parse(line)) is not None]
        return [event for event in events if event.alias == alias]

    def _is_full(self) -> bool:
        try:
            return self._path.stat().st_size >= self._max_bytes
        except FileNotFoundError:
            return False

    def _parse(self, line: Any) -> HandoverEvent | None:
        try:
            known = {one.name: line[one.name] for one in fields(HandoverEvent)}
        except (TypeError, KeyError):
            logger.warning("%s has a line that is no event, which is skipped", self._path)
            return None
        return HandoverEvent(**known)
