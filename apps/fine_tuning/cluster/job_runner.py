"""The interface of the cluster that the fine-tuning queue uses."""

from typing import Literal, Protocol

from apps.fine_tuning.cluster.tasks import TaskRunner

JobState = Literal["active", "ended", "unknown"]


class JobRunner(TaskRunner, Protocol):
    """Operations on Ray jobs; the id of a Ray job is the run's id and a number."""

    def start(self, job_id: str, command: str) -> None:
        """Start a job; do nothing if a job with this id was started before."""

    def find_state(self, job_id: str) -> JobState:
        """Return whether a job is active, has ended, or is unknown to this cluster."""

    def stop(self, job_id: str, timeout_s: float) -> bool:
        """Stop a job and wait until it has ended; return whether it ended in time."""

    def read_logs(self, job_id: str) -> str:
        """Return the output of a job, as far as it is known."""

    def find_exit(self, job_id: str) -> str | None:
        """Describe how the process of an ended job exited; return None if that is not known."""

    def list_nodes(self) -> list[dict[str, float]]:
        """Return the total resources of every node of the cluster."""
