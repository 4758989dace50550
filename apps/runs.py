"""The runs under a storage root, as the application finds and names them."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from apps.errors import ApiError, not_found
from serving.errors import ModelInUseError
from serving.model_store import ModelStore
from storage.layout import StorageLayout
from training.runs import RunFolder, RunRecord

logger = logging.getLogger(__name__)

EXPORTS_FOLDER = "exports"
_MAX_BASE_CHARACTERS = 40  # with a suffix of 64 and a step there are at most 128


def list_runs(layout: StorageLayout) -> list[tuple[RunFolder, RunRecord]]:
    """All runs with their records, newest first; one that cannot be read is logged, not shown."""
    runs = []
    for path in layout.runs.iterdir():
        run = RunFolder(path)
        try:
            runs.append((run, run.read_record()))
        except FileNotFoundError:  # being created: its record is written last
            continue
        except ValueError:
            logger.exception("the record of run %s cannot be read", path.name)
    return sorted(runs, key=lambda pair: (pair[1].created_at, pair[1].id), reverse=True)


def list_unfinished(layout: StorageLayout) -> list[tuple[RunFolder, RunRecord]]:
    """Runs that have not ended, in the order in which they are to compute."""
    runs = [pair for pair in reversed(list_runs(layout)) if not pair[1].is_final]
    return sorted(runs, key=lambda pair: -pair[1].priority)


def find_run(layout: StorageLayout, run_id: str) -> RunFolder:
    """Find a run by its id; raises `ApiError` 404."""
    try:
        run = RunFolder(layout.run(run_id))
    except ValueError:
        raise not_found("job", run_id) from None
    if not run.record_file.is_file():
        raise not_found("job", run_id)
    return run


def remove_deleted(layout: StorageLayout) -> None:
    """Remove what is left of runs whose deletion was cut short, which begins with their record."""
    for path in layout.runs.glob("ftjob-*"):
        if not RunFolder(path).record_file.exists():
            shutil.rmtree(path, ignore_errors=True)


def is_resumable(run: RunFolder, record: RunRecord) -> bool:
    """Whether a run goes on if told to: paused, or ended otherwise than well with its rows."""
    if record.status in ("failed", "cancelled"):
        return run.has_data
    return record.status == "paused"


@contextmanager
def expect_run(run_id: str) -> Iterator[None]:
    """Raise `ApiError` 404 where files of a run are gone, which was found a moment ago."""
    try:
        yield
    except FileNotFoundError:
        raise not_found("job", run_id) from None


def list_exports(layout: StorageLayout) -> list[tuple[RunFolder, str]]:
    """The runs and model ids of all checkpoints that are becoming models."""
    notes = sorted(layout.runs.glob(f"*/{EXPORTS_FOLDER}/*.json"))
    return [(RunFolder(note.parent.parent), note.stem) for note in notes]


def check_new_model(layout: StorageLayout, model_id: str) -> None:
    """Raise `ValueError` or `ApiError` 409 for an id that a new model cannot have."""
    try:
        ModelStore(layout).check_new_id(model_id)
    except FileExistsError as exc:
        raise ApiError(409, str(exc), param="model") from None
    check_unreserved(layout, model_id)


def check_unreserved(layout: StorageLayout, name: str) -> None:
    """Raise `ApiError` 409 for a name that a run or an export is going to give to its model."""
    for run, model_id in list_exports(layout):
        if model_id == name:
            raise ApiError(409, f"{name!r} is being published by job {run.path.name!r}")
    for _, record in list_runs(layout):
        if name_model(record) == name:
            raise ApiError(409, f"{name!r} is what job {record.id!r} calls its model")


def has_published(models: ModelStore, run_id: str, model_id: str) -> bool:
    """Whether a model of this id is there, and a run's own."""
    model = models.find(model_id)
    return model is not None and model.lineage.run_id == run_id


def delete_unneeded_model(layout: StorageLayout, model_id: str) -> None:
    """Delete a model that no alias, no unfinished run and no answer under way needs.

    Raises `ModelNotFoundError`, or `ModelInUseError` that says by what it is used.
    """

    def check_runs() -> None:
        for _, record in list_runs(layout):
            if not record.is_final and record.request.get("model") == model_id:
                raise ModelInUseError(f"job {record.id!r} still needs model {model_id!r}")

    ModelStore(layout).delete(model_id, check_runs)


def needs_file(record: RunRecord, file_id: str) -> bool:
    """Whether a job that has not ended reads a file."""
    needed = (record.request.get(name) for name in ("training_file", "validation_file"))
    return not record.is_final and file_id in needed


def name_model(record: RunRecord) -> str:
    """The id of the model that a run gives: base model, suffix and the end of the run's own id."""
    suffix = record.request.get("suffix") or "tuned"
    base = str(record.request["model"])[:_MAX_BASE_CHARACTERS]
    return f"{base}-{suffix}-{record.id[-6:]}"
