"""Fine-tunes as Ray Jobs of the cluster that this process belongs to."""

import logging
import time
from pathlib import Path
from typing import Any

import ray
from ray.job_submission import JobStatus, JobSubmissionClient

from apps.checks import check_file, check_job
from apps.exports import execute_export
from apps.job_runner import JobState
from apps.tasks import Task
from storage.layout import open_storage
from storage.privacy import keep_files_private
from training.priority import yield_to_others

logger = logging.getLogger(__name__)

_POLL_S = 0.1


class RayJobRunner:
    """The queue's `JobRunner`; job ids are Ray's submission ids."""

    def __init__(self) -> None:
        # By address: left to itself the client gives up where a second cluster runs.
        self._client = JobSubmissionClient(ray.get_runtime_context().gcs_address)
        self._tasks: dict[tuple[str, str], ray.ObjectRef[None]] = {}  # by kind and subject

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
        """Read what a job printed; nothing where it is unknown, or its node is gone."""
        try:
            return str(self._client.get_job_logs(job_id))
        except (RuntimeError, OSError, ValueError) as exc:
            logger.info("what job %s printed cannot be read: %s", job_id, exc)
            return ""

    def list_nodes(self) -> list[dict[str, float]]:
        """Total resources of every node that is alive."""
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return [node["Resources"] for node in nodes if node["Alive"]]

    def start_task(self, storage: Path, task: Task) -> None:
        """Do it as a Ray task that takes no CPU from the training beside it."""
        call = ray.remote(num_cpus=0, max_retries=0)(_execute)
        self._tasks[task.kind, task.subject] = call.remote(str(storage), task)

    def is_under_way(self, kind: str, subject: str) -> bool:
        """Whether the task is under way; one that an earlier process of ours began is not."""
        if (begun := self._tasks.get((kind, subject))) is None:
            return False
        ended, _ = ray.wait([begun], timeout=0)
        if ended:
            del self._tasks[kind, subject]
        return not ended

    def _find_status(self, job_id: str) -> JobStatus | None:
        try:
            return self._client.get_job_status(job_id)
        except RuntimeError as exc:  # the client's only way to say that it does not know it
            if "does not exist" in str(exc):
                return None
            raise


def _execute(storage: str, task: Task) -> None:
    import torch

    torch.set_num_threads(1)  # it runs beside a training
    yield_to_others()
    keep_files_private()
    layout = open_storage(storage)
    if task.kind == "export":
        run_id, step = task.arguments
        execute_export(layout, str(run_id), int(step), task.subject)
    elif task.kind == "check_job":
        check_job(layout, task.subject)
    else:
        check_file(layout, task.subject)
