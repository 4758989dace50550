"""Checks of rows that are still to be made, each until it has told what it found."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

from apps.checks import are_quick, check_file, read_refusal, read_share
from apps.errors import ApiError
from apps.files import FileStore
from apps.tasks import Task, TaskRunner
from storage.fault_log import FaultLog
from storage.layout import StorageLayout
from training.runs import RunFolder

logger = logging.getLogger(__name__)

_PAUSES_S = (0.0, 5.0, 30.0, 120.0, 600.0)
"""Before each try: what was in its way may pass."""
_NO_REASON = "its process ended without a reason being recorded"


class CheckDesk:
    """Has files checked that nobody has looked at, and those of jobs; one per storage root."""

    def __init__(
        self,
        layout: StorageLayout,
        runner: TaskRunner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._runner = runner
        self._files = FileStore(layout)
        self._clock = clock
        self._num_tries: Counter[Task] = Counter()
        self._not_before: dict[Task, float] = {}
        self._faults = FaultLog(logger)

    def look_after_job(self, run: RunFolder) -> str | dict[str, Any] | None:
        """Have the files of a job checked.

        Returns how far that is in words, None once they are found to be good, or what is wrong
        with them: `{"code", "message", "param"}`.
        """
        if self._runner.is_under_way("check_job", run.path.name):
            share = read_share(run) or 0.0
            return f"its files are being checked, {share:.0%} are read"
        if run.has_data:
            return None
        if (refusal := read_refusal(run)) is not None:
            return refusal
        task = Task("check_job", run.path.name)
        if not self._is_due(task):
            return "its files are to be checked again, since the check of them was cut short"
        if not self._begin(task):
            message = f"the check of its files failed {self._describe_tries(task)}"
            return {"code": "interrupted", "message": message, "param": None}
        return "its files are being checked"

    def look_after_files(self) -> None:
        """Check one small upload; have one large one checked aside."""
        is_busy = False
        unchecked = self._files.list_unchecked()
        self._faults.keep_only(unchecked)
        for file_id in unchecked:
            with self._faults.guard(file_id):
                outcome = self._look_after_file(file_id, is_busy)
                if outcome == "checked":
                    return
                is_busy = is_busy or outcome == "busy"

    def _look_after_file(self, file_id: str, is_busy: bool) -> Literal["left", "busy", "checked"]:
        task = Task("check_file", file_id)
        try:
            is_quick = are_quick([self._files.find_content(file_id)])
        except FileNotFoundError:  # deleted just now
            return "left"
        except ApiError as exc:
            if exc.status != 404:
                raise
            return "left"
        if is_busy and not is_quick:
            return "left"
        if self._runner.is_under_way(task.kind, file_id):
            return "busy"
        if not self._is_due(task):
            return "left"
        if not self._count_try(task):
            message = f"the check of the file failed {self._describe_tries(task)}"
            self._files.note_check(file_id, "error", message, None)
            return "left"
        if is_quick:
            check_file(self._layout, file_id)
            return "checked"
        self._runner.start_task(self._layout.root, task)
        return "busy"

    def _is_due(self, task: Task) -> bool:
        return self._clock() >= self._not_before.get(task, 0.0)

    def _describe_tries(self, task: Task) -> str:
        reason = self._runner.find_task_failure(task.kind, task.subject) or _NO_REASON
        return f"{len(_PAUSES_S)} times, the last time because {reason}"

    def _begin(self, task: Task) -> bool:
        """Begin with a check, unless it has ended without a word too often; tells whether."""
        if not self._count_try(task):
            return False
        self._runner.start_task(self._layout.root, task)
        return True

    def _count_try(self, task: Task) -> bool:
        self._num_tries[task] += 1
        if self._num_tries[task] > len(_PAUSES_S):
            return False
        pauses = (*_PAUSES_S[1:], 0.0)
        self._not_before[task] = self._clock() + pauses[self._num_tries[task] - 1]
        return True
