"""Work that takes long, in processes beside whatever computes.

What a task has done, it leaves on disk: whoever asked for it looks there once it is under way no
more. One whose process was killed has left nothing, and is begun again, or told of.
"""

from pathlib import Path
from typing import Literal, NamedTuple, Protocol


class Task(NamedTuple):
    """One piece of work; no two of a kind on one subject are under way at once."""

    kind: Literal["export", "check_job", "check_file"]
    subject: str
    """The id of the model, job or file."""
    arguments: tuple[str | int, ...] = ()


class TaskRunner(Protocol):
    """Who has tasks done."""

    def start_task(self, storage: Path, task: Task) -> None:
        """Begin with a task."""

    def is_under_way(self, kind: str, subject: str) -> bool:
        """Whether a task of ours was begun and has not ended."""

    def find_task_failure(self, kind: str, subject: str) -> str | None:
        """Why the last task of ours on a subject failed; None if it did not, or is not known."""
