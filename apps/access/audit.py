"""The audit log, `<storage>/audit.jsonl`: one line per change and per refused request.

A line contains no body, query string or key, only names, the path and the outcome. The size of the
log is limited, and so is the number of lines about refused requests and failed changes per key.
"""

import json
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
from storage.locks import lock_exclusive

logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 50_000_000
DEFAULT_NUM_OLD = 4
FAILURES_PER_MINUTE = 20
"""Most lines about refused requests and failed changes per key, process and minute."""
_MAX_KEYS = 1000
_MAX_CHARACTERS = 200
"""Longest text in a line, in ASCII characters after escaping."""


@dataclass(frozen=True)
class AuditEntry:
    """One request in the audit log, or one command that changed keys."""

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
    """`done`, `failed`, `refused`, or `unanswered`: the client left before there was a response."""
    reason: str | None
    """The code of a refusal."""
    created: str | None = None
    """The id of what the request created, unless its path contains that id."""
    user: str | None = None
    """The operating-system user who ran a command."""


class AuditLog:
    """Appends lines to the audit log; several processes may do so at once.

    At `max_bytes` the file is renamed to `audit.jsonl.1`, which becomes `.2`, up to `num_old`; if
    it is None, rotation is left to another process. Refused requests and failed changes are
    sampled: beyond `FAILURES_PER_MINUTE` of one key they are counted, and the next line of any key
    contains their number as `num_suppressed`.
    """

    def __init__(
        self,
        layout: StorageLayout,
        *,
        max_bytes: int | None = DEFAULT_MAX_BYTES,
        num_old: int = DEFAULT_NUM_OLD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._lock_path = layout.access.audit, layout.access.audit_lock
        self._max_bytes, self._num_old = max_bytes, num_old
        self._clock = clock
        self._failures: dict[str | None, Bucket] = {}
        self._num_suppressed = 0
        self._writing = Lock()  # several threads write lines
        self._counting = Lock()  # held only briefly, since the event loop takes it

    def write(self, entry: AuditEntry) -> None:
        """Write a line; a line that cannot be written is logged by the application as an error."""
        line: dict[str, object] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        for name, value in vars(entry).items():
            if value is not None:
                line[name] = _cut(value) if isinstance(value, str) else value
        with self._counting:
            if self._num_suppressed:
                line["num_suppressed"], self._num_suppressed = self._num_suppressed, 0
        with self._writing:
            try:
                _append(self._path, line)
                self._rotate()
            except OSError:
                logger.exception("the audit log cannot be written; the line was: %s", line)

    def samples_failure(self, key_id: str | None) -> bool:
        """Return whether the next refused request or failed change of a key gets a line.

        If not, it is counted as suppressed. `key_id` is None for all requests without a valid key.
        """
        with self._counting:
            bucket = self._failures.pop(key_id, None) or Bucket(FAILURES_PER_MINUTE, self._clock)
            self._failures[key_id] = bucket  # the most recently used is the last one
            if len(self._failures) > _MAX_KEYS:
                del self._failures[next(iter(self._failures))]
            if bucket.level >= 1:
                bucket.take(1)
                return True
            self._num_suppressed += 1
            return False

    def _is_full(self) -> bool:
        if self._max_bytes is None:
            return False
        try:
            return self._path.stat().st_size >= self._max_bytes
        except FileNotFoundError:  # another process has just rotated it
            return False

    def _rotate(self) -> None:
        if not self._is_full():
            return
        with lock_exclusive(self._lock_path):
            if not self._is_full():
                return
            old = [self._path, *(_number(self._path, n + 1) for n in range(self._num_old))]
            for newer, older in reversed(list(pairwise(old))):
                if newer.exists():
                    os.replace(newer, older)
            if not self._num_old:
                self._path.unlink()


def _cut(text: str) -> str:
    """Cut a text so that JSON writes it with at most `_MAX_CHARACTERS` ASCII characters."""
    size = 0
    for index, character in enumerate(text[:_MAX_CHARACTERS]):
        size += len(json.dumps(character)) - len('""')
        if size > _MAX_CHARACTERS:
            return text[:index]
    return text[:_MAX_CHARACTERS]


def _append(path: Path, line: dict[str, object]) -> None:
    """Append a line to a file that only its owner can read."""
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    append_json_line(path, line, is_ascii=True)


def _number(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
