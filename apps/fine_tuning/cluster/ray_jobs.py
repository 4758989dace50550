"""Fine-tuning runs as Ray jobs of the cluster that this process belongs to."""

import logging
import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import ray
import ray.exceptions
from ray.job_submission import JobStatus, JobSubmissionClient

from apps.fine_tuning.cluster.job_runner import JobState
from apps.fine_tuning.cluster.tasks import Task
from apps.fine_tuning.publication_tasks import execute_export
from apps.fine_tuning.rows.file_rows import survey_file
from apps.fine_tuning.validation.row_validation import check_file, check_job
from storage.layout import open_storage
from storage.privacy import keep_files_private
from system.allocator import return_large_blocks
from system.priority import lower_process_priority

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_ADDRESS_VARIABLE, _API_ADDRESS_VARIABLE = "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"
_NO_AGENT = "No available agent"
_NO_AGENT_ADVICE = (
    "the agent of the Ray cluster does not answer; it is starting, or another cluster on this "
    "machine uses its port: then start with 'tuneserve run', which chooses a free one"
)
_SHELL_SIGNAL_BASE = 128  # a shell reports signal N of its command as exit status 128 + N


class _Node(TypedDict):
    """The used fields of a node of the cluster, as Ray returns them."""

    Alive: bool
    Resources: dict[str, float]


class RayJobRunner:
    """The queue's `JobRunner`; job ids are Ray's submission ids."""

    def __init__(self) -> None:
        self._address: str = ray.get_runtime_context().gcs_address
        with _resolve_only(self._address):
            self._client = JobSubmissionClient(self._address)
        self._tasks: dict[tuple[str, str], ray.ObjectRef[None]] = {}  # by kind and subject
        self._task_failures: dict[tuple[str, str], str] = {}

    def start(self, job_id: str, command: str) -> None:
        """Submit a job to this cluster unless the cluster knows one with this id.

        The command sets `RAY_ADDRESS`: if several clusters run on a machine, the value that Ray
        gives a job may be that of another one. Raises `RuntimeError` if the cluster accepts no job
        now.
        """
        if self.find_state(job_id) == "unknown":
            environment = shlex.join(["env", f"{_ADDRESS_VARIABLE}={self._address}"])
            try:
                self._client.submit_job(entrypoint=f"{environment} {command}", submission_id=job_id)
            except RuntimeError as exc:
                if _NO_AGENT not in str(exc):
                    raise
                raise RuntimeError(_NO_AGENT_ADVICE) from exc

    def find_state(self, job_id: str) -> JobState:
        """Return the state of a job in this cluster."""
        status = self._find_status(job_id)
        if status is None:
            return "unknown"
        return "ended" if status.is_terminal() else "active"

    def stop(self, job_id: str, timeout_s: float) -> bool:
        """Stop a job; Ray sends SIGTERM, and SIGKILL after 3 s to processes that remain."""
        if self.find_state(job_id) == "active":
            self._client.stop_job(job_id)
        deadline = time.monotonic() + timeout_s
        while self.find_state(job_id) == "active":
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def read_logs(self, job_id: str) -> str:
        """Return the output of a job; empty if the job is unknown or its node is gone."""
        try:
            return str(self._client.get_job_logs(job_id))
        except (RuntimeError, OSError, ValueError) as exc:
            logger.info("the output of job %s cannot be read: %s", job_id, exc)
            return ""

    def find_exit(self, job_id: str) -> str | None:
        """Return how a job's process ended, as far as Ray recorded it."""
        if self.find_state(job_id) != "ended":
            return None
        info = self._client.get_job_info(job_id)
        if info.driver_exit_code is not None:
            return describe_exit(info.driver_exit_code)
        if info.status == JobStatus.STOPPED:
            return "it was stopped"
        if info.error_type is not None and info.message:  # Ray's supervisor of the job failed
            from training.cluster.failure_messages import summarise_exception  # slow to import

            return summarise_exception(RuntimeError(info.message))
        return None

    def find_task_failure(self, kind: str, subject: str) -> str | None:
        """Return why a task that this process started failed; None if it did not."""
        return self._task_failures.get((kind, subject))

    def list_nodes(self) -> list[dict[str, float]]:
        """Return the total resources of every node that is alive."""
        nodes: list[_Node] = ray.nodes()  # type: ignore[no-untyped-call]
        return [node["Resources"] for node in nodes if node["Alive"]]

    def start_task(self, storage: Path, task: Task) -> None:
        """Start a Ray task that reserves no CPU, which a concurrent training may need."""
        call = ray.remote(num_cpus=0, max_retries=0)(execute_task)
        self._task_failures.pop((task.kind, task.subject), None)
        self._tasks[task.kind, task.subject] = call.remote(str(storage), task)

    def is_running(self, kind: str, subject: str) -> bool:
        """Return whether a task is in progress; tasks of earlier processes do not count."""
        if (call := self._tasks.get((kind, subject))) is None:
            return False
        ended, _ = ray.wait([call], timeout=0)
        if ended:
            del self._tasks[kind, subject]
            self._record_failure(kind, subject, call)
        return not ended

    def _record_failure(self, kind: str, subject: str, ended: "ray.ObjectRef[None]") -> None:
        from training.cluster.failure_messages import summarise_exception  # slow to import

        try:
            ray.get(ended)
        except ray.exceptions.RayError as exc:
            reason = summarise_exception(exc)
            logger.warning("task %s of %s failed: %s", kind, subject, reason)
            self._task_failures[kind, subject] = reason

    def _find_status(self, job_id: str) -> JobStatus | None:
        try:
            return self._client.get_job_status(job_id)
        except RuntimeError as exc:  # the client reports an unknown job only by this exception
            if "does not exist" in str(exc):
                return None
            raise


def describe_exit(code: int) -> str:
    """Describe an exit status as `subprocess` reports it, or as a shell does for a signal."""
    number = -code if code < 0 else code - _SHELL_SIGNAL_BASE
    if number > 0:
        try:
            return f"its process ended with signal {number} ({signal.Signals(number).name})"
        except ValueError:  # not a signal
            pass
    return f"its process ended with exit status {code}"


@contextmanager
def _resolve_only(address: str) -> Iterator[None]:
    """Set Ray's variables to `address`: Ray's client prefers them to an argument."""
    before = {name: os.environ.get(name) for name in (_ADDRESS_VARIABLE, _API_ADDRESS_VARIABLE)}
    os.environ[_ADDRESS_VARIABLE] = address
    os.environ.pop(_API_ADDRESS_VARIABLE, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def execute_task(storage: str, task: Task) -> None:
    """Execute a task in this process, which may execute others later; propagates exceptions."""
    import torch

    torch.set_num_threads(1)  # it runs beside a training
    lower_process_priority()
    keep_files_private()
    layout = open_storage(storage)
    if task.kind == "export":
        run_id, step = task.arguments
        execute_export(layout, str(run_id), int(step), task.subject)
        return
    return_large_blocks()
    if task.kind == "check_job":
        check_job(layout, task.subject)
    elif task.kind == "survey_file":
        survey_file(layout, task.subject, *map(str, task.arguments))
    else:
        check_file(layout, task.subject)
