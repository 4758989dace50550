"""What clients ask about the rows of a file: pages of them, and surveys, each made once."""

import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from apps.errors import ApiError, InvalidInputError, invalid_input
from apps.file_store import FileStore
from apps.fine_tuning.cluster.tasks import Task, TaskRunner
from apps.fine_tuning.rows.file_spec import FileSpec, build_file_spec
from apps.fine_tuning.rows.row_pages import RowPageObject, RowQuery, read_page
from apps.fine_tuning.rows.survey_objects import FindingKind, FindingObject, LengthsObject
from apps.fine_tuning.validation.row_thread import RowThread
from apps.fine_tuning.validation.row_validation import MAX_QUICK_S, SlowRowsError, are_quick
from storage.layout import StorageLayout
from system.library_imports import import_transformers
from training.data.faults import DataError
from training.launch import disable_progress_bars
from training.spec import SettingError

# Imported lazily: these modules take seconds, which would delay the start of the application.
if TYPE_CHECKING:
    from apps.fine_tuning.rows.row_survey import Survey

logger = logging.getLogger(__name__)

SURVEY_TASK: Literal["survey_file"] = "survey_file"


class SurveyObject(TypedDict):
    """A survey of the rows of a file as the API shows it; its counts exist once it is complete."""

    object: Literal["file.statistics"]
    status: Literal["running", "completed"]
    model: str
    format: NotRequired[str]
    task: NotRequired[str]
    unit: NotRequired[str]
    max_length: NotRequired[int]
    num_rows: NotRequired[int]
    num_faulty_rows: NotRequired[int]
    num_duplicate_rows: NotRequired[int]
    num_compared_rows: NotRequired[int]
    lengths: NotRequired[LengthsObject | None]


class FileRows:
    """Reads rows for clients on the queue's thread for rows; a task surveys large files.

    One task is in progress at a time; the surveys of other files start when they are asked for
    again.
    """

    def __init__(self, layout: StorageLayout, runner: TaskRunner, rows: RowThread) -> None:
        self._layout = layout
        self._runner = runner
        self._rows = rows
        self._started: tuple[str, str] | None = None  # the file and the key of the last task

    async def read_page(self, file_id: str, query: RowQuery) -> RowPageObject:
        """Read a page of the rows of a file; see `row_pages.read_page`."""
        return await self._rows.run(read_page, self._layout, file_id, query)

    async def survey(self, file_id: str, model: str, training: Mapping[str, Any]) -> SurveyObject:
        """Return the counts of a survey, which is made if it is quick, or started.

        Raises as a preview does.
        """
        return await self._rows.run(self._survey, file_id, model, training)

    async def list_findings(
        self, file_id: str, model: str, training: Mapping[str, Any], kind: FindingKind
    ) -> list[FindingObject]:
        """List the rows of one kind that a survey found; raises `ApiError` 409 while it runs."""
        return await self._rows.run(self._list_findings, file_id, model, training, kind)

    def _list_findings(
        self, file_id: str, model: str, training: Mapping[str, Any], kind: FindingKind
    ) -> list[FindingObject]:
        if self._survey(file_id, model, training)["status"] == "running":
            raise ApiError(
                409,
                f"the rows of file {file_id!r} are being read; ask again when its statistics have "
                "the status 'completed'",
                code="survey_running",
            )
        return _open(self._layout, file_id, model, training)[1].read_findings(kind)

    def _survey(self, file_id: str, model: str, training: Mapping[str, Any]) -> SurveyObject:
        asked, survey = _open(self._layout, file_id, model, training)
        try:
            counts = survey.read_counts()
            is_started = self._started == (file_id, survey.key)  # it took too long to be quick
            if counts is None and not is_started and are_quick([asked.path]):
                with suppress(SlowRowsError):
                    survey.make(_limit_time())
                    counts = survey.read_counts()
        except DataError as exc:
            FileStore(self._layout).check_unchanged(asked.known)
            raise InvalidInputError(str(exc), param="file_id") from exc
        if counts is not None:
            done: SurveyObject = {
                "object": "file.statistics",
                "status": "completed",
                "model": asked.model_id,
                **counts,
            }
            return done
        self._start(file_id, survey.key, model, training)
        return {"object": "file.statistics", "status": "running", "model": asked.model_id}

    def _start(self, file_id: str, key: str, model: str, training: Mapping[str, Any]) -> None:
        """Start the task of a survey unless one is in progress; raises `ApiError` if it failed."""
        if self._started is not None:
            if self._runner.is_running(SURVEY_TASK, self._started[0]):
                return
            failure = self._runner.find_task_failure(SURVEY_TASK, file_id)
            if self._started == (file_id, key) and failure:
                self._started = None
                message = f"the rows of file {file_id!r} could not be read: {failure}"
                raise ApiError(500, message, code="survey_failed")
        self._started = file_id, key
        task = Task(SURVEY_TASK, file_id, (model, json.dumps(dict(training))))
        self._runner.start_task(self._layout.root, task)


def survey_file(layout: StorageLayout, file_id: str, model: str, training: str) -> None:
    """Make the survey of a file in this process; `training` is the JSON of the settings."""
    disable_progress_bars()
    path = FileStore(layout).find_content(file_id)

    def stop_if_deleted() -> None:
        if not path.exists():
            raise FileNotFoundError(f"file {file_id} was deleted")

    _open(layout, file_id, model, json.loads(training))[1].make(stop_if_deleted)


def _open(
    layout: StorageLayout, file_id: str, model: str, training: Mapping[str, Any]
) -> "tuple[FileSpec, Survey]":
    import_transformers()
    from apps.fine_tuning.rows.row_survey import open_survey

    asked = build_file_spec(layout, file_id, model, training)
    with invalid_input("model", only=SettingError):
        return asked, open_survey(asked.spec, asked.known, layout.token_cache)


def _limit_time() -> Any:
    """Return a callback that raises `SlowRowsError` after `MAX_QUICK_S`."""
    give_up_at = time.monotonic() + MAX_QUICK_S

    def check_time() -> None:
        if time.monotonic() > give_up_at:
            raise SlowRowsError

    return check_time
