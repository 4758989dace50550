"""What clients do to existing runs: cancel, pause, resume and delete them."""

from threading import Lock

from apps.errors import ApiError
from apps.fine_tuning.extension.run_extender import find_extension
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import has_exports, is_resumable
from apps.fine_tuning.lost_runs import LostRuns
from apps.fine_tuning.run_processes import RunProcesses
from apps.settings import UsageLimits
from apps.usage_limits import check_job_counts
from storage.layout import StorageLayout
from storage.tombstones import remove_tombstones, rename_to_tombstone
from training.run import run_state
from training.run.folder import RunFolder
from training.run.run_record import RunRecord

STOP_TIMEOUT_S = 10.0


class RunChanges:
    """Changes runs for clients; `lock` is held for every decision about a run.

    Methods block, and raise `ApiError` 409 for a change that the status of the run does not allow.
    """

    def __init__(
        self,
        layout: StorageLayout,
        lock: Lock,
        runs: RunIndex,
        processes: RunProcesses,
        lost_runs: LostRuns,
        limits: UsageLimits,
    ) -> None:
        self._layout = layout
        self._lock = lock
        self._runs = runs
        self._processes = processes
        self._lost_runs = lost_runs
        self._limits = limits

    def cancel(self, run: RunFolder) -> None:
        """Cancel a run; a running one ends before this returns, or `ApiError` 504 is raised."""
        with self._lock:
            record = _read_unfinished(run)
            run.request_cancel()
            run.events.add("Cancelling", code="cancel_requested")
            if is_written_by_queue(record):
                self._lost_runs.end_or_requeue(run)
                return
        if not self._processes.stop(run, record, STOP_TIMEOUT_S):
            message = f"job {record.id!r} did not stop in {STOP_TIMEOUT_S:g} s; it ends "
            raise ApiError(504, f"{message}as soon as it does")
        with self._lock:
            if run.is_cancel_requested:  # otherwise it has ended and was queued again
                self._lost_runs.end_or_requeue(run)

    def pause(self, run: RunFolder) -> None:
        """Pause a run; a running one is asked to pause after its step."""
        with self._lock:
            record = _read_unfinished(run)
            if run.requested_pause_reason == "user":
                return
            run.request_pause()
            if is_written_by_queue(record):
                run.events.add("Paused")
                run_state.pause(run)
            else:
                run.events.add("Pausing after this step", code="pause_requested")

    def resume(self, run: RunFolder) -> None:
        """Queue a paused, failed or cancelled run, or withdraw the pause of a running one."""
        with self._lock:
            record = run.read_record()
            if record.status in ("failed", "cancelled"):
                check_job_counts(self._runs, self._limits, is_new=False)
                try:
                    _resume_ended_run(run, record)
                finally:  # it may be queued although its event could not be written
                    self._runs.record_reopened(run.path.name)
                return
            record = _read_unfinished(run)
            if run.is_cancel_requested:
                message = f"job {record.id!r} is being cancelled"
                raise ApiError(409, message, code="job_not_paused")
            if record.status != "paused" and not run.is_pause_requested:
                message = f"job {record.id!r} is {record.status}, not paused"
                raise ApiError(409, message, code="job_not_paused")
            run.pause_file.unlink(missing_ok=True)
            if record.status == "paused":
                resume_run(run)
            else:  # if its process pauses nevertheless, the next pass queues the run again
                run.events.add("The pause was withdrawn")

    def delete(self, run: RunFolder) -> None:
        """Delete the folder of a run that has ended."""
        with self._lock:
            record = run.read_record()
            if not record.is_final:
                message = f"job {record.id!r} is {record.status}; cancel it first"
                raise ApiError(409, message, code="job_not_ended")
            if has_exports(run):
                message = f"a checkpoint of job {record.id!r} is being published"
                raise ApiError(409, message, code="in_use")
            if extension := find_extension(self._runs, record.id):
                message = f"job {extension!r} extends job {record.id!r} and has not copied its "
                raise ApiError(409, f"{message}checkpoints yet", code="in_use")
            rename_to_tombstone(run.path)
        remove_tombstones(self._layout.runs)


def is_written_by_queue(record: RunRecord) -> bool:
    """Return whether the queue writes the record; the job of a paused run has ended."""
    return record.writer == "queue" or record.status == "paused"


def resume_run(run: RunFolder) -> None:
    """Put a run that was paused or has ended back into the queue."""
    record = run_state.resume(run)
    if record.status == "queued":
        run.events.add_once("Queued again", code="queued")
    elif record.extended_from is not None:
        run.events.add_once(f"Copying the checkpoints of job {record.extended_from} again")
    else:
        run.events.add_once("Checking the files again")


def _resume_ended_run(run: RunFolder, record: RunRecord) -> None:
    """Put a failed or cancelled run back into the queue, as if it had been paused."""
    if not is_resumable(run, record):
        what = "rows were read" if record.extended_from is None else "checkpoints were copied"
        message = f"job {record.id!r} has {record.status} before its {what}, and cannot resume; "
        raise ApiError(409, f"{message}create it again", code="job_ended")
    # Requests are removed first: once the record is not final, they would be carried out.
    run.cancel_file.unlink(missing_ok=True)
    run.pause_file.unlink(missing_ok=True)
    resume_run(run)


def _read_unfinished(run: RunFolder) -> RunRecord:
    record = run.read_record()
    if record.is_final:
        message = f"job {record.id!r} has {record.status} already"
        raise ApiError(409, message, code="job_ended")
    return record
