"""The fine-tuning queue: starts runs in order, and pauses, resumes and ends them.

All its state is on disk in the records of the runs, so it can be restarted at any time. It writes
the record of a queued run. When it starts the run, the run's Ray job becomes the writer; the queue
becomes the writer again only when that job is known to have ended. A run whose Ray job was lost is
queued again, at its old position, and resumes from its last checkpoint.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Literal

from apps.errors import ApiError, refuse_full_disk
from apps.fine_tuning.checkpoint_export import ExportDesk
from apps.fine_tuning.cluster.job_runner import JobRunner
from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import (
    expect_run,
    find_run,
    has_exports,
    is_resumable,
    list_waiting_order,
)
from apps.fine_tuning.job_schemas import describe_job, parse_fine_tune
from apps.fine_tuning.run_endings import end_run, settle_lost, tell_once
from apps.fine_tuning.scheduler import RunStarter, tell_waiting
from apps.fine_tuning.submission import Intake
from apps.fine_tuning.validation.row_thread import RowThread
from apps.fine_tuning.validation.validation_tasks import CheckDesk
from apps.settings import UsageLimits
from apps.usage import check_job_counts
from storage.layout import StorageLayout
from storage.locks import try_lock
from storage.tombstones import bury_folder, remove_tombstones
from system.fault_log import FaultLog
from system.free_resources import has_room
from system.threads import DedicatedThread
from training.run.folder import RunError, RunFolder, RunRecord
from training.run.lease import LeaseWatch

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
_POLL_S = 0.1

_Place = Literal["waiting", "computing", "neither"]


class RunQueue:
    """Starts runs by priority, then in order of creation, at most `max_concurrent_runs` at once.

    A run whose process is lost is restarted, at most `max_restarts` times without a completed step
    in between.
    """

    def __init__(
        self,
        layout: StorageLayout,
        runner: JobRunner,
        *,
        max_concurrent_runs: int = 1,
        max_restarts: int = 3,
        reserved_cpus: float = 0.0,
        reserved_gpus: float = 0.0,
        limits: UsageLimits | None = None,
    ) -> None:
        self._layout = layout
        self._runner = runner
        self._runs = RunIndex(layout)
        self._limits = limits or UsageLimits()
        sizes = ModelSizes(layout)
        self._exports = ExportDesk(layout, self._runs, runner, sizes, self._limits)
        self._rows = RowThread()
        self._checks = CheckDesk(layout, runner, self._rows)
        self._intake = Intake(layout, self._runs, sizes, self._limits, reserved_cpus, reserved_gpus)
        self._faults, self._run_faults = FaultLog(logger), FaultLog(logger)
        self._leases = LeaseWatch()
        self._max_restarts = max_restarts
        # Serialises decisions about runs: between reading a record and acting on it, nothing else
        # may end or start the run.
        self._lock = threading.Lock()
        self._starter = RunStarter(
            layout,
            runner,
            self._lock,
            max_concurrent_runs=max_concurrent_runs,
            reserved_cpus=reserved_cpus,
            reserved_gpus=reserved_gpus,
        )
        self._is_draining = False
        self._num_computing: int | None = None  # None until a pass has counted them
        self._storage_guard = threading.Lock()
        self._passes = DedicatedThread(
            "reconcile"
        )  # never waits for a thread that a request occupies
        self._storage_lock: IO[str] | None = None
        self._has_taken_over = False

    def close(self) -> None:
        """Release the storage, so that another queue can take it over."""
        self._exports.close()
        self._rows.close()
        if self._storage_lock is not None:
            self._storage_lock.close()
            self._storage_lock = None

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Validate and queue a fine-tuning job; return it as the API shows it.

        Raises `ServingError` or `ApiError` for a job that cannot work.
        """
        request = parse_fine_tune(body)
        nodes = self._runner.list_nodes()
        return describe_job(await self._rows.run(self._intake.create, request, nodes))

    async def preview(
        self, file_id: str, model: str, num_rows: int, training: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Show how the first rows of a file become tokens for a model."""
        return await self._rows.run(self._intake.preview, file_id, model, num_rows, training)

    def get_defaults(self, model: str) -> dict[str, Any]:
        """Return the default settings of a fine-tuning job for `model`, and their schema."""
        return self._intake.get_defaults(model)

    async def cancel(self, run_id: str) -> dict[str, Any]:
        """Cancel a queued, paused or running run now; return the job as the API shows it.

        The cancellation completes even if its caller no longer waits. Raises `ApiError` 404 for an
        unknown run, 409 for one that has ended.
        """
        return await self._change(self._cancel, run_id)

    async def pause(self, run_id: str) -> dict[str, Any]:
        """Pause a run; a running one first finishes its step and saves a checkpoint.

        A paused run uses no resources. Returns the job as the API shows it, which may still be
        running for a moment. Raises `ApiError` 404 for an unknown run, 409 for one that has ended.
        """
        return await self._change(self._pause, run_id)

    async def resume(self, run_id: str) -> dict[str, Any]:
        """Put a paused, failed or cancelled run back into the queue, at its old position.

        The run resumes from its last checkpoint. Returns the job as the API shows it. Raises
        `ApiError` 404 for an unknown run, 409 for one that has succeeded, is queued or running, or
        whose rows were never read.
        """
        return await self._change(self._resume, run_id)

    async def delete(self, run_id: str) -> None:
        """Delete a run that has ended, including its checkpoints; models stay.

        Raises `ApiError` 404 for an unknown run, 409 for one that has not ended.
        """
        run = find_run(self._layout, run_id)
        await asyncio.to_thread(self._check_storage)
        with expect_run(run_id):
            await asyncio.shield(asyncio.to_thread(self._delete, run))

    async def publish_checkpoint(
        self, run_id: str, checkpoint_id: str, model_id: str | None
    ) -> dict[str, Any]:
        """Start publishing a checkpoint of a run as a model; see `ExportDesk.begin`."""
        await asyncio.to_thread(self._check_storage)
        return await asyncio.to_thread(self._exports.begin, run_id, checkpoint_id, model_id)

    async def reconcile(self) -> None:
        """Reconcile the records with the Ray jobs: settle lost runs, start queued ones."""
        await self._passes.run(self._reconcile)

    async def drain(self) -> bool:
        """Start no more runs, and make those that compute save a checkpoint and pause.

        The next queue that takes over the storage ends these pauses. Returns whether no run
        computes any more; call this again until it returns True.
        """
        self._is_draining = True
        self._num_computing = None  # a pass that fails has counted nothing
        await self.reconcile()
        return self._num_computing == 0

    async def _change(self, change: Callable[[RunFolder], None], run_id: str) -> dict[str, Any]:
        run = find_run(self._layout, run_id)
        await asyncio.to_thread(self._check_storage)
        with expect_run(run_id), refuse_full_disk():
            await asyncio.shield(asyncio.to_thread(change, run))
            return describe_job(run)

    def _cancel(self, run: RunFolder) -> None:
        with self._lock:
            record = _read_unfinished(run)
            run.request_cancel()
            run.add_event("Cancelling", code="cancel_requested")
            if record.writer == "queue" or record.status == "paused":
                self._settle_lost(run)
                return
        assert record.job_id is not None
        deadline = time.monotonic() + STOP_TIMEOUT_S
        is_over = self._runner.stop(record.job_id, STOP_TIMEOUT_S)
        while not is_over or self._leases.is_alive(run):  # a process may outlive its job
            if time.monotonic() > deadline:
                message = f"job {record.id!r} did not stop in {STOP_TIMEOUT_S:g} s; it ends "
                raise ApiError(504, f"{message}as soon as it does")
            time.sleep(_POLL_S)
        with self._lock:
            if run.is_cancel_requested:  # otherwise it has ended and was queued again
                self._settle_lost(run)

    def _pause(self, run: RunFolder) -> None:
        with self._lock:
            record = _read_unfinished(run)
            if run.requested_pause_reason == "user":
                return
            run.request_pause()
            if record.writer == "queue" or record.status == "paused":
                run.add_event("Paused")
                run.mark_paused(waiting_for=None)
            else:
                run.add_event("Pausing after this step", code="pause_requested")

    def _resume(self, run: RunFolder) -> None:
        with self._lock:
            record = run.read_record()
            if record.status in ("failed", "cancelled"):
                check_job_counts(self._runs, self._limits, is_new=False)
                try:
                    self._take_up_ended(run, record)
                finally:  # it may be queued although its event could not be written
                    self._runs.note_reopened(run.path.name)
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
                self._take_up(run)
            else:  # if its process pauses nevertheless, the next pass queues the run again
                run.add_event("The pause was withdrawn")

    def _take_up(self, run: RunFolder) -> None:
        """Put a run that was paused or had ended back into the queue."""
        run.update_record(
            status="queued" if run.has_data else "validating_files",
            writer="queue",
            num_lost=0,
            error=None,
            finished_at=None,
            result_file=None,
            pause_reason=None,
            waiting_for=None,
            needed_bytes=None,
        )
        if run.has_data:
            tell_once(run, "Queued again", code="queued")
        else:
            tell_once(run, "Checking the files again")

    def _take_up_ended(self, run: RunFolder, record: RunRecord) -> None:
        """Put a failed or cancelled run back into the queue, as if it had been paused."""
        if not is_resumable(run, record):
            message = (
                f"job {record.id!r} has {record.status} before its rows were read, and cannot "
            )
            raise ApiError(409, f"{message}go on; create it again", code="job_ended")
        # Requests are removed first: once the record is not final, they would be carried out.
        run.cancel_file.unlink(missing_ok=True)
        run.pause_file.unlink(missing_ok=True)
        self._take_up(run)

    def _delete(self, run: RunFolder) -> None:
        with self._lock:
            record = run.read_record()
            if not record.is_final:
                message = f"job {record.id!r} is {record.status}; cancel it first"
                raise ApiError(409, message, code="job_not_ended")
            if has_exports(run):
                message = f"a checkpoint of job {record.id!r} is being published"
                raise ApiError(409, message, code="in_use")
            bury_folder(run.path)
        remove_tombstones(self._layout.runs)

    def _reconcile(self) -> None:
        if not self._holds_storage():
            return
        with self._faults.guard("the queued runs"):
            self._reconcile_runs()
        if self._is_draining:
            self._checks.withdraw_tries()
            return
        with self._faults.guard("the exports of checkpoints"):
            self._exports.reconcile()
        with self._faults.guard("the checks of files"):
            self._checks.look_after_files()

    def _reconcile_runs(self) -> None:
        found = self._runs.scan_unfinished()
        computing: list[RunFolder] = []
        waiting: list[RunFolder] = []
        for run, record in list_waiting_order(found):
            place: _Place = "neither" if record.writer == "queue" else "computing"
            with self._run_faults.guard(f"run {record.id}"):
                place = self._look_after(run, record)
            if place == "computing":
                computing.append(run)
            elif place == "waiting":
                waiting.append(run)
        for unreadable in found.unreadable:  # its process may be alive and use its resources
            with self._run_faults.guard(f"run {unreadable.run.path.name}"):
                if self._leases.is_alive(unreadable.run):
                    computing.append(unreadable.run)
        self._run_faults.keep_only(
            f"run {run.path.name}"
            for run in [*(run for run, _ in found.runs), *(one.run for one in found.unreadable)]
        )
        self._num_computing = len(computing)
        if self._is_draining:
            self._pause_all(computing)
        else:
            self._starter.start_next(waiting, computing)

    def _pause_all(self, computing: list[RunFolder]) -> None:
        """Pause the runs that compute until the application starts again."""
        for run in computing:
            with self._run_faults.guard(f"run {run.path.name}"):
                self._pause_for_shutdown(run)

    def _look_after(self, run: RunFolder, record: RunRecord) -> _Place:
        """Reconcile one run without starting it; return its state until the next pass."""
        is_ours = record.writer == "queue" or record.status == "paused"
        if run.is_cancel_requested:  # the cancellation may have been interrupted
            if not is_ours and self._computes(run, record):
                assert record.job_id is not None
                self._runner.stop(record.job_id, timeout_s=0.0)
                return "computing"
            with self._lock:
                self._settle_lost(run)
            return "neither"
        if record.status == "paused":
            with self._lock:
                if not self._is_draining and run.requested_pause_reason == "shutdown":
                    run.pause_file.unlink(missing_ok=True)  # unreadable when we took over
                found = run.read_record()
                is_to_go_on = found.status == "paused" and not run.is_pause_requested
                if is_to_go_on and has_room(run.path, found.needed_bytes):
                    self._take_up(run)
            return "neither"
        if is_ours and record.status == "validating_files":
            if not self._is_draining:
                self._look_after_check(run)
            return "neither"
        if is_ours or self._is_unstarted(record):
            return "waiting"
        if self._computes(run, record):
            return "computing"
        with self._lock:
            self._settle_lost(run)
        return "waiting" if self._is_waiting(run) else "neither"  # and keeps its position

    def _pause_for_shutdown(self, run: RunFolder) -> None:
        with self._lock:
            if not run.is_pause_requested and not run.is_cancel_requested:
                run.request_pause("shutdown")
                run.add_event(
                    "The application is stopping; pausing after this step", code="pause_requested"
                )

    def _end_shutdown_pauses(self) -> None:
        """Resume the runs that the last shutdown paused; runs that users paused stay paused."""
        for run, _ in self._runs.scan_unfinished().runs:
            with self._run_faults.guard(f"run {run.path.name}"):
                if run.requested_pause_reason != "shutdown":
                    continue
                with self._lock:
                    run.pause_file.unlink(missing_ok=True)
                    if run.read_record().status == "paused":
                        self._take_up(run)  # before any run behind it in the queue starts

    def _is_waiting(self, run: RunFolder) -> bool:
        record = run.read_record()
        return record.status == "queued" and record.writer == "queue"

    def _is_unstarted(self, record: RunRecord) -> bool:
        """Return whether the queue was killed between assigning a job id and starting the job."""
        if record.status != "queued" or record.job_id is None:
            return False
        return self._runner.find_state(record.job_id) == "unknown"

    def _computes(self, run: RunFolder, record: RunRecord) -> bool:
        """Return whether a process computes a run: its job, or one that has outlived its job."""
        if record.job_id is not None and self._runner.find_state(record.job_id) == "active":
            return True
        return self._leases.is_alive(run)

    def _look_after_check(self, run: RunFolder) -> None:
        """Schedule the check of a run's files, or apply its result."""
        found = self._checks.look_after_job(run)
        with self._lock:
            if run.read_record().status != "validating_files":
                return
            if found is None:
                run.add_event("Queued", code="queued")
                run.update_record(status="queued", waiting_for=None)
            elif isinstance(found, str):
                tell_waiting(run, found)
            else:
                error = RunError.model_validate(found)
                end_run(self._layout, run, "failed", error.message, error)

    def _settle_lost(self, run: RunFolder) -> None:
        record = run.read_record()
        if record.writer == "queue" and not run.is_cancel_requested:
            return  # it has ended meanwhile and was queued again
        reason = self._find_reason(record.job_id or record.id)
        settle_lost(self._layout, run, reason, self._max_restarts)

    def _find_reason(self, job_id: str) -> str:
        """Describe why a job's process ended, only from what is recorded of it."""
        if self._runner.find_state(job_id) == "unknown":
            return "the Ray cluster that its process belonged to has ended"
        reason = self._runner.find_exit(job_id)
        reason = reason or "its process ended without a reason being recorded"
        output = self._runner.read_logs(job_id).strip()
        return f"{reason}; its last output: {output.splitlines()[-1][:300]}" if output else reason

    def _check_storage(self) -> None:
        """Raise `ApiError` 503 if another queue locked the storage; the first call may be slow."""
        if not self._holds_storage():
            raise ApiError(503, "another application looks after the jobs of this storage")

    def _holds_storage(self) -> bool:
        """Return whether this queue has the storage's lock, taking it over if it is free.

        The kernel releases the locks of dead processes.
        """
        with self._storage_guard:
            if self._storage_lock is None:
                file = self._layout.queue_lock.open("w")
                if not try_lock(file):
                    file.close()
                    logger.warning("another application looks after the runs here: %s", file.name)
                    return False
                self._storage_lock = file
            if not self._has_taken_over:  # also after an attempt that failed
                self._remove_deleted()
                if not self._is_draining:
                    self._end_shutdown_pauses()
                self._has_taken_over = True
        return True

    def _remove_deleted(self) -> None:
        """Remove the remains of runs and files whose deletion was interrupted."""
        for folder in (self._layout.runs, self._layout.files):
            with self._faults.guard(f"deleted entries of {folder.name}/"):
                remove_tombstones(folder)


def _read_unfinished(run: RunFolder) -> RunRecord:
    record = run.read_record()
    if record.is_final:
        message = f"job {record.id!r} has {record.status} already"
        raise ApiError(409, message, code="job_ended")
    return record
