"""The cluster as the queue of fine-tunes sees it."""

from typing import Literal, Protocol

from apps.tasks import TaskRunner

JobState = Literal["active", "ended", "unknown"]


class JobRunner(TaskRunner, Protocol):
    """What the queue needs of the cluster; the id of a Ray Job is the run's and a number."""

    def start(self, job_id: str, command: str) -> None:
        """Start a job; does nothing if one of this id was started already."""

    def find_state(self, job_id: str) -> JobState:
        """Whether a job is under way, has ended, or was never known to this cluster."""

    def stop(self, job_id: str, timeout_s: float) -> bool:
        """Stop a job and wait until it ended; returns whether it did in time."""

    def read_logs(self, job_id: str) -> str:
        """What a job printed, as far as it is known."""

    def find_exit(self, job_id: str) -> str | None:
        """How the process of a job that has ended did so; None if that is not known."""

    def list_nodes(self) -> list[dict[str, float]]:
        """Total resources of every node of the cluster."""
