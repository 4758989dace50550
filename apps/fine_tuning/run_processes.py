"""The processes that compute runs: whether they are alive, how they ended, and their end."""

import time

from apps.fine_tuning.cluster.job_runner import JobRunner
from training.run.folder import RunFolder
from training.run.lease import LeaseWatch
from training.run.run_record import RunRecord

_POLL_S = 0.1
_MAX_OUTPUT_CHARACTERS = 300


class RunProcesses:
    """Finds and stops the processes of runs; a process may outlive its Ray job."""

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner
        self._leases = LeaseWatch()

    def is_alive(self, run: RunFolder) -> bool:
        """Return whether a process has the lease of a run."""
        return self._leases.is_alive(run)

    def is_computing(self, run: RunFolder, record: RunRecord) -> bool:
        """Return whether a process computes a run: its job, or one that has outlived its job."""
        if record.job_id is not None and self._runner.find_state(record.job_id) == "active":
            return True
        return self._leases.is_alive(run)

    def is_unstarted(self, record: RunRecord) -> bool:
        """Return whether the queue was killed between assigning a job id and starting the job."""
        if record.status != "queued" or record.job_id is None:
            return False
        return self._runner.find_state(record.job_id) == "unknown"

    def request_stop(self, record: RunRecord) -> None:
        """Stop the job of a run without waiting for its end."""
        assert record.job_id is not None
        self._runner.stop(record.job_id, timeout_s=0.0)

    def stop(self, run: RunFolder, record: RunRecord, timeout_s: float) -> bool:
        """Stop a run's job and wait for the end of its process; return whether it ended in time."""
        assert record.job_id is not None
        deadline = time.monotonic() + timeout_s
        has_ended = self._runner.stop(record.job_id, timeout_s)
        while not has_ended or self._leases.is_alive(run):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def describe_end(self, job_id: str) -> str:
        """Describe why a job's process ended, only from what is recorded of it."""
        if self._runner.find_state(job_id) == "unknown":
            return "the Ray cluster that its process belonged to has ended"
        reason = self._runner.find_exit(job_id)
        reason = reason or "its process ended without a reason being recorded"
        output = self._runner.read_logs(job_id).strip()
        if not output:
            return reason
        return f"{reason}; its last output: {output.splitlines()[-1][:_MAX_OUTPUT_CHARACTERS]}"
