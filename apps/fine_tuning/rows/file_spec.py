"""The spec with which the rows of an uploaded file are read for a model, before any job exists."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from apps.errors import InvalidInputError, invalid_input
from apps.file_store import FileStore
from apps.fine_tuning.default_settings import build_default_spec
from apps.fine_tuning.job_requests import parse_fine_tune
from apps.fine_tuning.validation.row_task import choose_preview_task
from apps.fine_tuning.validation.row_validation import find_known_files
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from training.data.faults import DataError
from training.spec import TrainingSpec

if TYPE_CHECKING:
    from training.data.readers import KnownFile


class FileSpec(NamedTuple):
    """How a job from a model would read a file: the spec, the file, and its upload record."""

    model_id: str
    spec: TrainingSpec
    path: Path
    known: "Mapping[str, KnownFile]"


def build_file_spec(
    layout: StorageLayout, file_id: str, model: str, training: Mapping[str, Any]
) -> FileSpec:
    """Build the spec of a job from `model` with the settings `training` for one file.

    Its task is the one in `training`, or else the one that the check of the file uses. Raises
    `ServingError` or `ApiError` for a model, a file or settings that a job cannot have.
    """
    models, files = ModelStore(layout), FileStore(layout)
    stored = models.resolve(model)
    file = files.find_content(file_id)
    request = parse_fine_tune(
        {"model": model, "training_file": file_id, "training": dict(training)}
    )
    defaults = build_default_spec(models, stored, str(file), request.task)
    spec = request.resolve_settings(defaults)
    if spec.loop is not None:
        raise InvalidInputError(
            f"training.loop is {spec.loop!r}, and a loop gets the rows as they are: there are "
            "no tokens to show",
            param="training",
        )
    known = find_known_files(layout, spec)
    try:
        with invalid_input("training", only=ValidationError):
            spec = choose_preview_task(spec, known, file, is_named="task" in training)
    except DataError as exc:
        files.check_unchanged(known)
        raise InvalidInputError(str(exc), param="file") from exc
    return FileSpec(stored.id, spec, file, known)
