"""The audit log: `<storage>/audit.jsonl`, one line per change and per refused request.

A line has no body, no query string and no key: only names, the path, and what became of it.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Lock

from apps.access.rate_limit import Bucket
from storage.durable import append_json_line
from storage.layout import StorageLayout
from storage.locks import take_turn

logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 50_000_000
DEFAULT_NUM_OLD = 4
REFUSALS_PER_MINUTE = 20
"""Lines about refused requests that one process writes per minute; the rest are counted."""
_MAX_PATH_CHARACTERS = 200


@dataclass(frozen=True)
class AuditEntry:
    """One request in the audit log."""

    request_id: str
    key: str | None
    key_id: str | None
    role: str | None
    client: str | None
    method: str
    path: str
    subject: str | None
    status: int | None
    outcome: str
    """`done`, `failed`, `refused`, or `unanswered`: the client left before there was an answer."""
    reason: str | None
    """The code of a refusal."""


class AuditLog:
    """Appends lines; several processes may do so at once.

    At `max_bytes` the file is renamed to `audit.jsonl.1`, which becomes `.2`, up to `num_old`.
    Refused requests are sampled: beyond `REFUSALS_PER_MINUTE` they are counted, and the next line
    has their number as `num_suppressed`.
    """

    def __init__(
        self,
        layout: StorageLayout,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        num_old: int = DEFAULT_NUM_OLD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._lock_path = layout.audit, layout.audit_lock
        self._max_bytes, self._num_old = max_bytes, num_old
        self._refusals = Bucket(REFUSALS_PER_MINUTE, clock)
        self._num_suppressed = 0
        self._writing = Lock()  # lines are written by threads
        self._counting = Lock()  # for moments only: the event loop takes it

    def write(self, entry: AuditEntry) -> None:
        """Write a line; one that cannot be written goes to the application's log, as an error."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **vars(entry)}
        line["path"] = entry.path[:_MAX_PATH_CHARACTERS]
        line = {name: value for name, value in line.items() if value is not None}
        with self._counting:
            if self._num_suppressed:
                line["num_suppressed"], self._num_suppressed = self._num_suppressed, 0
        with self._writing:
            try:
                _append(self._path, line)
                self._rotate()
            except OSError:
                logger.exception("the audit log cannot be written; the line was: %s", line)

    def samples_refusal(self) -> bool:
        """Whether the next refused request gets a line; counts it if not."""
        with self._counting:
            if self._refusals.level >= 1:
                self._refusals.take(1)
                return True
            self._num_suppressed += 1
            return False

    def _is_full(self) -> bool:
        try:
            return self._path.stat().st_size >= self._max_bytes
        except FileNotFoundError:  # another process has just rotated it
            return False

    def _rotate(self) -> None:
        if not self._is_full():
            return
        with take_turn(self._lock_path):
            if not self._is_full():
                return
            old = [self._path, *(_number(self._path, n + 1) for n in range(self._num_old))]
            for newer, older in reversed(list(pairwise(old))):
                if newer.exists():
                    os.replace(newer, older)
            if not self._num_old:
                self._path.unlink()


def _append(path: Path, line: dict[str, object]) -> None:
    """Append a line to a file that only its owner can read."""
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    append_json_line(path, line, is_ascii=True)


def _number(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
