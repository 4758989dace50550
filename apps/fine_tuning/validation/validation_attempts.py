"""Attempts of checks, counted on disk: a check that kills the queue is not retried forever."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from apps.fine_tuning.cluster.tasks import Task
from storage import versioned_json
from storage.durable import DamagedFileError
from storage.layout import StorageLayout

logger = logging.getLogger(__name__)

PAUSES_S = (0.0, 5.0, 30.0, 120.0, 600.0)
"""Pause in seconds before each attempt: the cause of a failure may be temporary."""
MAX_ATTEMPTS = len(PAUSES_S)
ATTEMPTS_NAME = "check_tries.json"


class _StoredAttempts(BaseModel):
    """The stored attempts of one check."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    num_tries: int = Field(ge=0, description="How often the check was begun.")
    last_try_at: float = Field(description="Unix seconds of the last time.")


class Attempts(NamedTuple):
    """The number of attempts of a check, and the time of the last one, in Unix seconds."""

    num_attempts: int
    last_attempt_at: float

    def is_due(self, now: float) -> bool:
        """Return whether the pause after the last attempt is over."""
        if not 0 < self.num_attempts < MAX_ATTEMPTS:
            return True
        # A clock that was set back causes no delay.
        return not 0.0 <= now - self.last_attempt_at < PAUSES_S[self.num_attempts]


class AttemptCounter:
    """Counts attempts in the folders of the files and jobs that are checked."""

    def __init__(self, layout: StorageLayout, clock: Callable[[], float]) -> None:
        self._layout = layout
        self._clock = clock

    def read(self, task: Task) -> Attempts:
        """Return the attempts of a check; none if they cannot be read, which is logged."""
        path = self._name_file(task)
        try:
            value = versioned_json.read_object(path)
            found = _StoredAttempts.model_validate(value)
        except (FileNotFoundError, NotADirectoryError):
            return Attempts(0, 0.0)
        except (DamagedFileError, ValidationError) as exc:
            logger.warning("%s cannot be read and is counted from zero: %s", path, exc)
            return Attempts(0, 0.0)
        return Attempts(found.num_tries, found.last_try_at)

    def is_due(self, task: Task) -> bool:
        """Return whether a check may be started now, or given up."""
        return self.read(task).is_due(self._clock())

    def count(self, task: Task) -> bool:
        """Record one more attempt on disk and return True; return False at the limit.

        Raises `OSError` if the attempt cannot be written.
        """
        attempts = self.read(task)
        if attempts.num_attempts >= MAX_ATTEMPTS:
            return False
        self._write(task, Attempts(attempts.num_attempts + 1, self._clock()))
        return True

    def withdraw(self, task: Task) -> None:
        """Remove one attempt, which was interrupted for a reason unrelated to the checked rows."""
        attempts = self.read(task)
        if attempts.num_attempts > 1:
            self._write(task, Attempts(attempts.num_attempts - 1, attempts.last_attempt_at))
        else:
            self.clear(task)

    def clear(self, task: Task) -> None:
        """Remove the attempts of a check that has ended."""
        self._name_file(task).unlink(missing_ok=True)

    def _write(self, task: Task, attempts: Attempts) -> None:
        stored = _StoredAttempts(
            num_tries=attempts.num_attempts, last_try_at=attempts.last_attempt_at
        )
        versioned_json.write_object(self._name_file(task), stored.model_dump())

    def _name_file(self, task: Task) -> Path:
        is_file = task.kind == "check_file"
        folder = self._layout.file(task.subject) if is_file else self._layout.run(task.subject)
        return folder / ATTEMPTS_NAME
