"""Scheduling of pending row checks, with retries until each one has reported its result."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal

from apps.errors import ApiError
from apps.file_store import FileStore
from apps.fine_tuning.cluster.tasks import Task, TaskRunner
from apps.fine_tuning.validation.row_thread import RowThread
from apps.fine_tuning.validation.row_validation import (
    Refusal,
    SlowRowsError,
    are_quick,
    check_file,
    read_refusal,
    read_share,
)
from apps.fine_tuning.validation.validation_attempts import MAX_ATTEMPTS, AttemptCounter
from storage.layout import StorageLayout
from system.fault_log import FaultLog
from training.run.continuation import COPY_LOCK
from training.run.folder import RunFolder

logger = logging.getLogger(__name__)

_NO_REASON = "its process ended without a reason being recorded"


class ValidationScheduler:
    """Schedules checks of uploads and of the files of jobs; one per storage root.

    Small files are checked on `rows`, one at a time, since a task takes seconds to start and the
    memory of another process. Row limits (`training.data.row_limits`) bound the cost of a file; a
    small file that takes long nevertheless is checked by a task.
    """

    def __init__(
        self,
        layout: StorageLayout,
        runner: TaskRunner,
        rows: RowThread,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._layout = layout
        self._runner = runner
        self._rows = rows
        self._files = FileStore(layout)
        self._attempts = AttemptCounter(layout, clock)
        self._started: set[Task] = set()  # started, and not known to have ended
        self._quick: tuple[Task, Future[None]] | None = None
        self._slow: set[str] = set()  # small files to be checked by tasks
        self._failures: dict[Task, str] = {}  # reason of the last failure of each quick check
        self._faults = FaultLog(logger)

    def reconcile_job(self, run: RunFolder) -> str | Refusal | None:
        """Schedule the check of a job's files, and return its state.

        Returns a description of the progress, None once the files are known to be valid, or the
        fault found in them.
        """
        copied = _describe_copied(run)
        if self._runner.is_running("check_job", run.path.name):
            if copied:
                return f"{copied} are being copied"
            share = read_share(run) or 0.0
            return f"its files are being checked, {share:.0%} are read"
        task = Task("check_job", run.path.name)
        if run.has_data:
            self._end(task)
            return None
        if (refusal := read_refusal(run)) is not None:
            self._end(task)
            return refusal
        if copied and run.is_locked(COPY_LOCK):  # a task of an earlier queue; costs no attempt
            return f"{copied} are still being copied, by a task that was started before"
        if not self._attempts.is_due(task):
            if copied:
                return f"{copied} will be copied again, because their copy was interrupted"
            return "its files will be checked again, because their check was interrupted"
        if not self._start(task):
            failed = f"the copy of {copied}" if copied else "the check of its files"
            message = f"{failed} failed {self._describe_attempts(task)}"
            return {"code": "interrupted", "message": message, "param": None}
        return f"{copied} are being copied" if copied else "its files are being checked"

    def reconcile_files(self) -> None:
        """Schedule checks of uploads: at most one small and one large file at a time."""
        self._record_quick_outcome()
        is_busy = False
        unchecked = self._files.list_unchecked()
        self._faults.keep_only(unchecked)
        self._clear_others(set(unchecked))
        for file_id in unchecked:
            with self._faults.guard(file_id):
                outcome = self._reconcile_file(file_id, is_busy)
                if outcome == "started":
                    return
                is_busy = is_busy or outcome == "busy"

    def withdraw_attempts(self) -> None:
        """Withdraw the attempts of running checks, which the application's shutdown interrupts."""
        self._record_quick_outcome()
        for task in list(self._started):
            with self._faults.guard(task.subject):
                is_quick = self._quick is not None and self._quick[0] == task
                if is_quick or self._runner.is_running(task.kind, task.subject):
                    self._attempts.withdraw(task)
                    self._started.discard(task)

    def _reconcile_file(self, file_id: str, is_busy: bool) -> Literal["skipped", "busy", "started"]:
        task = Task("check_file", file_id)
        try:
            is_quick = are_quick([self._files.find_content(file_id)]) and file_id not in self._slow
        except FileNotFoundError:  # deleted just now
            return "skipped"
        except ApiError as exc:
            if exc.status != 404:
                raise
            return "skipped"
        is_blocked = self._quick is not None if is_quick else is_busy
        if is_blocked:
            return "skipped"
        if self._runner.is_running(task.kind, file_id):
            return "busy"
        if not self._attempts.is_due(task):
            return "skipped"
        if not self._attempts.count(task):
            message = f"the check of the file failed {self._describe_attempts(task)}"
            self._files.record_check(file_id, "error", message, None)
            self._end(task)
            return "skipped"
        self._started.add(task)
        if is_quick:
            self._quick = task, self._rows.submit(check_file, self._layout, file_id, is_quick=True)
            return "started"
        self._runner.start_task(self._layout.root, task)
        return "busy"

    def _record_quick_outcome(self) -> None:
        """Record the outcome of a quick check that has ended."""
        if self._quick is None or not self._quick[1].done():
            return
        task, future = self._quick
        self._quick = None
        with self._faults.guard(task.subject):
            try:
                future.result()
            except SlowRowsError:
                self._slow.add(task.subject)
                self._attempts.withdraw(task)
                self._started.discard(task)
            except Exception as exc:
                self._failures[task] = str(exc).replace(str(self._layout.root), "<storage>")
                raise
            else:
                self._end(task)

    def _end(self, task: Task) -> None:
        """Clear the state of a check that has ended."""
        self._started.discard(task)
        self._failures.pop(task, None)
        self._attempts.clear(task)

    def _clear_others(self, unchecked: set[str]) -> None:
        """Clear the state of files that tasks have checked, or that were deleted."""
        self._slow &= unchecked
        for task in [one for one in self._started if one.kind == "check_file"]:
            if task.subject not in unchecked:
                self._end(task)

    def _describe_attempts(self, task: Task) -> str:
        found = self._runner.find_task_failure(task.kind, task.subject)
        reason = found or self._failures.get(task) or _NO_REASON
        return f"{MAX_ATTEMPTS} times, the last time because {reason}"

    def _start(self, task: Task) -> bool:
        """Start a check and return True; return False if too many attempts had no result."""
        if not self._attempts.count(task):
            return False
        self._started.add(task)
        self._runner.start_task(self._layout.root, task)
        return True


def _describe_copied(run: RunFolder) -> str | None:
    """Describe what a job copies instead of reading its files; None unless it is an extension."""
    source_id = run.read_record().extended_from
    return None if source_id is None else f"the checkpoints of job {source_id}"
