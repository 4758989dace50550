"""Long-running tasks, in processes other than those that compute runs.

A task stores its result on disk, where the caller reads it once the task is no longer in progress.
A task whose process was killed leaves no result, and is started again or reported as failed.
"""

from pathlib import Path
from typing import Literal, NamedTuple, Protocol


class Task(NamedTuple):
    """One task; at most one of a kind is in progress per subject."""

    kind: Literal["export", "check_job", "check_file", "survey_file"]
    subject: str
    """The id of the model, job or file."""
    arguments: tuple[str | int, ...] = ()


class TaskRunner(Protocol):
    """Starts tasks and reports their state."""

    def start_task(self, storage: Path, task: Task) -> None:
        """Start a task."""

    def is_running(self, kind: str, subject: str) -> bool:
        """Return whether a task that this process started is still in progress."""

    def find_task_failure(self, kind: str, subject: str) -> str | None:
        """Return why our last task on a subject failed; None if it did not, or that is unknown."""
