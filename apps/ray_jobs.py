"""Fine-tunes as Ray Jobs of the cluster that this process belongs to."""

import time
from pathlib import Path
from typing import Any

import ray
from ray.job_submission import JobStatus, JobSubmissionClient

from apps.exports import execute_export
from apps.queue import JobState
from storage.layout import open_storage
from training.priority import yield_to_others

_POLL_S = 0.1


class RayJobRunner:
    """The queue's `JobRunner`; a Ray Job's submission id is the run's id."""

    def __init__(self) -> None:
        # By address: left to itself the client gives up where a second cluster runs.
        self._client = JobSubmissionClient(ray.get_runtime_context().gcs_address)
        self._exports: dict[str, ray.ObjectRef[None]] = {}

    def start(self, job_id: str, command: str) -> None:
        """Submit a job unless one of this id is known."""
        if self.find_state(job_id) == "unknown":
            self._client.submit_job(entrypoint=command, submission_id=job_id)

    def find_state(self, job_id: str) -> JobState:
        """Ask the cluster about a job."""
        status = self._find_status(job_id)
        if status is None:
            return "unknown"
        return "ended" if status.is_terminal() else "active"

    def stop(self, job_id: str, timeout_s: float) -> bool:
        """Stop a job; Ray sends SIGTERM, and SIGKILL to what is left after 3 s."""
        if self.find_state(job_id) == "active":
            self._client.stop_job(job_id)
        deadline = time.monotonic() + timeout_s
        while self.find_state(job_id) == "active":
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def read_logs(self, job_id: str) -> str:
        """Read what a job printed; nothing if it is unknown."""
        if self.find_state(job_id) == "unknown":
            return ""
        return str(self._client.get_job_logs(job_id))

    def list_nodes(self) -> list[dict[str, float]]:
        """Total resources of every node that is alive."""
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return [node["Resources"] for node in nodes if node["Alive"]]

    def start_export(self, storage: Path, run_id: str, step: int, model_id: str) -> None:
        """Run the export as a Ray task that takes no CPU from the training beside it."""
        task = ray.remote(num_cpus=0, max_retries=0)(_export)
        self._exports[model_id] = task.remote(str(storage), run_id, step, model_id)

    def is_exporting(self, model_id: str) -> bool:
        """Whether the task is under way; one that an earlier process of ours began is not."""
        if model_id not in self._exports:
            return False
        ended, _ = ray.wait([self._exports[model_id]], timeout=0)
        if ended:
            del self._exports[model_id]
        return not ended

    def _find_status(self, job_id: str) -> JobStatus | None:
        try:
            return self._client.get_job_status(job_id)
        except RuntimeError as exc:  # the client's only way to say that it does not know it
            if "does not exist" in str(exc):
                return None
            raise


def _export(storage: str, run_id: str, step: int, model_id: str) -> None:
    import torch

    torch.set_num_threads(1)  # it runs beside a training
    yield_to_others()
    execute_export(open_storage(storage), run_id, step, model_id)
