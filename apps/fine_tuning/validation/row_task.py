"""The task that an uploaded file of rows is for, by its first row."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.file_index import CheckError
from training.data.faults import DataError
from training.settings.task_settings import PREFERENCE_TASK
from training.spec import TrainingSpec
from training.task import find_task

if TYPE_CHECKING:
    from training.data.readers import KnownFile

CLASSIFICATION_TASK = "sequence_classification"
IMAGE_TASK = "image_classification"
_PROMPT_KEYS = frozenset({"prompt", "input", "conversations"})
_GENERATION_KEYS = frozenset(
    {"messages", "conversations", "prompt", "completion", "instruction", "output"}
)
_SIZES = ("micro_batch_size", "micro_batch_tokens")


def choose_preview_task(
    spec: TrainingSpec, known: Mapping[str, "KnownFile"], path: Path, *, is_named: bool
) -> TrainingSpec:
    """Return the spec with which to preview a file: its own if its task `is_named`.

    Otherwise that of the task which the check of the file uses; an archive has images.
    """
    from training.data.files.zip_files import is_zip

    if is_named:
        return spec
    if is_zip(path):
        return _change_task(spec, IMAGE_TASK)
    return list_row_tasks(spec, known)[0]


def list_row_tasks(spec: TrainingSpec, known: Mapping[str, "KnownFile"]) -> list[TrainingSpec]:
    """Return the specs with which to check a file: of classification first if its rows have labels.

    Rows with two answers, or an answer and a verdict, are for preference tuning. Other rows with a
    key of chats or prompts are only for language models, whatever else they have. Rows with a text
    and a label are for a classifier; those with the key `text` may also be plain text.
    """
    labelled = _make_classification_spec(spec)
    record = _read_first(labelled, known)
    if record is not None and (preferred := _make_preference_spec(spec, record)) is not None:
        return [preferred]
    if record is None or _GENERATION_KEYS & set(map(str, record)):
        return [spec]
    from training.data.labelled.texts import choose_columns

    try:
        choose_columns(record, labelled.columns)
    except DataError:
        return [spec]
    return [labelled, spec] if "text" in record else [labelled]


def find_error_code(spec: TrainingSpec, known: Mapping[str, "KnownFile"]) -> CheckError:
    """Return why rows failed a check: a file with columns of other names can still be used."""
    from training.data.text.formats import choose_parser

    chosen = list_row_tasks(spec, known)[0]
    record = _read_first(chosen, known)
    if record and chosen.task == spec.task:
        try:
            choose_parser(record, spec.format, spec.columns)
        except DataError:
            return "unknown_columns"
    return "invalid_rows"


def _make_classification_spec(spec: TrainingSpec) -> TrainingSpec:
    """Return a spec for the same rows, which are truncated: another model may have more context."""
    return _change_task(spec, CLASSIFICATION_TASK, overlong="truncate")


def _make_preference_spec(
    spec: TrainingSpec, record: Mapping[object, object]
) -> TrainingSpec | None:
    """Return a spec with a loss that learns from rows like this one; None for other rows.

    A single answer without a prompt is a key of some other kind of row.
    """
    from training.data.preference.formats import recognise_format
    from training.data.text.messages import is_given

    keys = {str(key) for key, value in record.items() if is_given(value)}
    if not keys & _PROMPT_KEYS and not keys >= {"chosen", "rejected"}:
        return None
    found = recognise_format(keys)
    if found == "unpaired":
        if not isinstance(record["label"], bool):
            return None
        return _change_task(spec, PREFERENCE_TASK, task_settings={"loss": "kto"})
    return None if found is None else _change_task(spec, PREFERENCE_TASK)


def _change_task(spec: TrainingSpec, task: str, **settings: Any) -> TrainingSpec:
    """Return a spec for the same rows and another task, with the defaults of that task."""
    own = {"base_adapter", "best_metric", "task_settings", *find_task(task).unused_settings}
    if task == IMAGE_TASK:  # an image is not as long as a text
        own.update(_SIZES)
    kept = spec.model_dump(exclude=own)
    return TrainingSpec.model_validate({**kept, "task": task, **settings})


def _read_first(
    spec: TrainingSpec, known: Mapping[str, "KnownFile"]
) -> Mapping[object, object] | None:
    """Return the first row; None if it cannot be read, which the check of all rows reports."""
    from training.data.sources import open_train_sources

    with suppress(DataError, OSError, ValueError):
        for _, record in open_train_sources(spec, known)[0].source.read():
            return record if isinstance(record, Mapping) else None
    return None
