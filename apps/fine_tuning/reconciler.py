"""The reconcile pass: it compares the records of the runs with their Ray jobs.

It ends or requeues lost runs, completes interrupted changes, ends pauses, and starts queued runs.
"""

import logging
from collections.abc import Sequence
from threading import Lock
from typing import Literal

from apps.fine_tuning.index.run_index import RunIndex, UnreadableRun
from apps.fine_tuning.index.run_lookup import list_start_order
from apps.fine_tuning.lost_runs import LostRuns
from apps.fine_tuning.run_changes import is_written_by_queue, resume_run
from apps.fine_tuning.run_endings import end_run
from apps.fine_tuning.run_processes import RunProcesses
from apps.fine_tuning.scheduler import RunScheduler, record_waiting_reason
from apps.fine_tuning.validation.validation_tasks import ValidationScheduler
from storage.layout import StorageLayout
from system.fault_log import FaultLog
from system.free_resources import has_free_space
from training.run import run_state
from training.run.folder import RunFolder
from training.run.run_record import RunError, RunRecord

logger = logging.getLogger(__name__)

_Activity = Literal["waiting", "computing", "neither"]


class Reconciler:
    """Reconciles all runs; `lock` is held for every decision about a run.

    While `is_draining`, no run is started, and those that compute are asked to pause.
    """

    def __init__(
        self,
        layout: StorageLayout,
        lock: Lock,
        runs: RunIndex,
        processes: RunProcesses,
        lost_runs: LostRuns,
        scheduler: RunScheduler,
        validation: ValidationScheduler,
    ) -> None:
        self._layout = layout
        self._lock = lock
        self._runs = runs
        self._processes = processes
        self._lost_runs = lost_runs
        self._scheduler = scheduler
        self._validation = validation
        self._faults = FaultLog(logger)
        self.is_draining = False

    def reconcile(self) -> int:
        """Reconcile all runs, and start queued ones; return how many computed before that."""
        found = self._runs.scan_unfinished()
        computing: list[RunFolder] = []
        waiting: list[RunFolder] = []
        for run, record in list_start_order(found):
            activity: _Activity = "neither" if record.writer == "queue" else "computing"
            with self._faults.guard(f"run {record.id}"):
                activity = self._reconcile_run(run, record)
            if activity == "computing":
                computing.append(run)
            elif activity == "waiting":
                waiting.append(run)
        computing += self._list_unreadable_computing(found.unreadable)
        self._faults.keep_only(
            f"run {run.path.name}"
            for run in [*(run for run, _ in found.runs), *(one.run for one in found.unreadable)]
        )
        if self.is_draining:
            self._pause_all(computing)
        else:
            self._scheduler.start_next(waiting, computing)
        return len(computing)

    def end_shutdown_pauses(self) -> None:
        """Resume the runs that the last shutdown paused; runs that users paused stay paused."""
        for run, _ in self._runs.scan_unfinished().runs:
            with self._faults.guard(f"run {run.path.name}"):
                if run.requested_pause_reason != "shutdown":
                    continue
                with self._lock:
                    run.pause_file.unlink(missing_ok=True)
                    if run.read_record().status == "paused":
                        resume_run(run)  # before any run behind it in the queue starts

    def _list_unreadable_computing(self, unreadable: Sequence[UnreadableRun]) -> list[RunFolder]:
        """Return the runs with unreadable records whose processes are alive and use resources."""
        computing = []
        for found in unreadable:
            with self._faults.guard(f"run {found.run.path.name}"):
                if self._processes.is_alive(found.run):
                    computing.append(found.run)
        return computing

    def _reconcile_run(self, run: RunFolder, record: RunRecord) -> _Activity:
        """Reconcile one run without starting it; return its activity until the next pass."""
        is_ours = is_written_by_queue(record)
        if run.is_cancel_requested:  # the cancellation may have been interrupted
            if not is_ours and self._processes.is_computing(run, record):
                self._processes.request_stop(record)
                return "computing"
            with self._lock:
                self._lost_runs.end_or_requeue(run)
            return "neither"
        if record.status == "paused":
            with self._lock:
                self._end_pause(run)
            return "neither"
        if is_ours and record.status == "validating_files":
            if not self.is_draining:
                self._reconcile_validation(run)
            return "neither"
        if is_ours or self._processes.is_unstarted(record):
            return "waiting"
        if self._processes.is_computing(run, record):
            return "computing"
        with self._lock:
            self._lost_runs.end_or_requeue(run)
        record = run.read_record()
        is_waiting = record.status == "queued" and record.writer == "queue"
        return "waiting" if is_waiting else "neither"  # and keeps its position

    def _end_pause(self, run: RunFolder) -> None:
        """Queue a paused run whose pause request is gone, once its disk has the needed room."""
        if not self.is_draining and run.requested_pause_reason == "shutdown":
            run.pause_file.unlink(missing_ok=True)  # unreadable when we took over
        record = run.read_record()
        if record.status != "paused" or run.is_pause_requested:
            return
        if has_free_space(run.path, record.needed_bytes):
            resume_run(run)

    def _reconcile_validation(self, run: RunFolder) -> None:
        """Schedule the validation of a run's files, or apply its result."""
        found = self._validation.reconcile_job(run)
        with self._lock:
            if run.read_record().status != "validating_files":
                return
            if found is None:
                run.events.add("Queued", code="queued")
                run_state.accept_files(run)
            elif isinstance(found, str):
                record_waiting_reason(run, found)
            else:
                error = RunError.model_validate(found)
                end_run(self._layout, run, error.message, error)

    def _pause_all(self, computing: Sequence[RunFolder]) -> None:
        """Pause the runs that compute until the application starts again."""
        for run in computing:
            with self._faults.guard(f"run {run.path.name}"), self._lock:
                if not run.is_pause_requested and not run.is_cancel_requested:
                    run.request_pause("shutdown")
                    run.events.add(
                        "The application is stopping; pausing after this step",
                        code="pause_requested",
                    )
