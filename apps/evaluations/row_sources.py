"""The rows of an evaluation: those of a file, or the validation rows of a job."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from apps.errors import ApiError, InvalidInputError
from apps.evaluations.evaluation_record import RowPart
from apps.file_index import ROWS_PURPOSE
from apps.file_store import FileStore
from apps.fine_tuning.index.run_lookup import expect_run, find_run
from storage.layout import StorageLayout
from training.run.folder import RunFolder
from training.settings.task_settings import DEFAULT_TASK, PREFERENCE_TASK
from training.spec import TrainingSpec

_ROW_SETTINGS = ("format", "columns", "text_rows", "reasoning", "template_arguments")
"""The settings of a job that determine how its rows are read."""
_VALIDATION_TABLE = "validation.arrow"


class ChosenRows(NamedTuple):
    """Parts of files, and the settings with which a job reads them."""

    parts: tuple[RowPart, ...]
    training: Mapping[str, Any]


def choose_file(layout: StorageLayout, file_id: str) -> ChosenRows:
    """Choose the rows of a file; raises `ApiError` unless it is a known file of rows."""
    files = FileStore(layout)
    files.find_content(file_id)
    purpose = files.get(file_id)["purpose"]
    if purpose != ROWS_PURPOSE:
        raise InvalidInputError(
            f"file {file_id!r} has the purpose {purpose!r}: expected a file of rows, with the "
            f"purpose {ROWS_PURPOSE!r}",
            param="file",
        )
    return ChosenRows((RowPart(file=file_id),), {})


def choose_validation_rows(layout: StorageLayout, job_id: str, max_rows: int) -> ChosenRows:
    """Choose the first validation rows of a job: of its file, or those that were held out.

    Raises `ApiError` for an unknown job, and for one without validation rows or whose files were
    deleted.
    """
    run = find_run(layout, job_id)
    with expect_run(job_id):
        spec, asked = run.read_spec(), run.read_record().request
    if spec.task not in (DEFAULT_TASK, PREFERENCE_TASK):
        raise InvalidInputError(
            f"job {job_id!r} has the task {spec.task!r}, whose rows have no text to compare with: "
            "expected a job of a language model",
            param="job",
            code="wrong_task",
        )
    if file_id := asked.get("validation_file"):
        parts: tuple[RowPart, ...] = (RowPart(file=str(file_id)),)
    elif spec.validation_fraction:
        parts = _list_held_out(run, asked, max_rows)
    else:
        raise _refuse_job(job_id, "has no validation rows")
    files = FileStore(layout)
    for part in parts:
        files.find_content(part.file)
    return ChosenRows(parts, _read_settings(spec))


def _list_held_out(run: RunFolder, asked: Mapping[str, Any], max_rows: int) -> tuple[RowPart, ...]:
    job_id = run.path.name
    table = run.data / _VALIDATION_TABLE
    if not table.is_file():
        if not run.has_data:
            message = f"the rows of job {job_id!r} have not been read yet; try again later"
            raise ApiError(409, message, param="job", code="rows_not_read")
        raise _refuse_job(job_id, "keeps no list of the rows that it holds out")
    from training.data.row_table import read_numbers_by_source

    mix: Sequence[Mapping[str, Any]] = asked.get("training_files") or ()
    files = [str(entry["file"]) for entry in mix] or [str(asked["training_file"])]
    numbers = read_numbers_by_source(table)
    if len(files) != len(numbers):
        raise _refuse_job(job_id, "holds out rows of files that it does not name")
    parts = []
    num_left = max_rows
    for file_id, own in zip(files, numbers, strict=True):
        first = tuple(sorted(set(own.tolist()))[:num_left])
        num_left -= len(first)
        if first:
            parts.append(RowPart(file=file_id, numbers=first))
    if not parts:
        raise _refuse_job(job_id, "has no validation rows")
    return tuple(parts)


def _read_settings(spec: TrainingSpec) -> dict[str, Any]:
    """Return the settings of a job with which its rows are read, except for defaults."""
    values = spec.model_dump(mode="json", include=set(_ROW_SETTINGS))
    defaults = TrainingSpec.model_fields
    settings = {
        name: value
        for name, value in values.items()
        if value != defaults[name].get_default(call_default_factory=True)
    }
    if spec.task == PREFERENCE_TASK:
        settings |= {"task": spec.task, "task_settings": dict(spec.task_settings)}
    return settings


def _refuse_job(job_id: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"job {job_id!r} {reason}: name the rows with 'file', or a job with validation_file or "
        "validation_fraction",
        param="job",
        code="no_validation_rows",
    )
