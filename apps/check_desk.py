"""Checks of rows that are still to be made, each until it has told what it found."""

from collections import Counter
from typing import Any

from apps.checks import are_quick, check_file, read_refusal, read_share
from apps.errors import ApiError
from apps.files import FileStore
from apps.tasks import Task, TaskRunner
from storage.layout import StorageLayout
from training.runs import RunFolder

_MAX_TRIES = 3
_ENDED = "the process that read it ended before it was done, again and again"


class CheckDesk:
    """Has files checked that nobody has looked at, and those of jobs; one per storage root."""

    def __init__(self, layout: StorageLayout, runner: TaskRunner) -> None:
        self._layout = layout
        self._runner = runner
        self._files = FileStore(layout)
        self._num_tries: Counter[Task] = Counter()

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
        if not self._begin(Task("check_job", run.path.name)):
            return {"code": "interrupted", "message": f"its files: {_ENDED}", "param": None}
        return "its files are being checked"

    def look_after_files(self) -> None:
        """Check one small upload; have one large one checked aside."""
        is_busy = False
        for file_id in self._files.list_unchecked():
            task = Task("check_file", file_id)
            try:
                is_quick = are_quick([self._files.find_content(file_id)])
            except (ApiError, FileNotFoundError):  # deleted just now
                continue
            if is_quick:
                check_file(self._layout, file_id)
                return
            if is_busy or self._runner.is_under_way(task.kind, file_id) or self._begin(task):
                is_busy = True
            else:
                self._files.note_check(file_id, "error", _ENDED, None)

    def _begin(self, task: Task) -> bool:
        """Begin with a check, unless it has ended without a word too often; tells whether."""
        self._num_tries[task] += 1
        if self._num_tries[task] > _MAX_TRIES:
            return False
        self._runner.start_task(self._layout.root, task)
        return True
