"""Lookup and naming of the runs under a storage root."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apps.errors import ApiError, not_found
from apps.evaluations.evaluation_store import EvaluationStore, find_evaluation_of
from apps.fine_tuning.index.merge_notes import list_merging
from apps.fine_tuning.index.run_index import IndexedRuns, RunIndex, UnreadableRun, describe_fault
from apps.hub.transfer_notes import list_installing
from serving.errors import ModelInUseError
from serving.store.lineage import Lineage
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.durable import DamagedFileError
from storage.layout import StorageLayout
from training.run.folder import RunFolder
from training.run.run_record import RunRecord

EXPORTS_FOLDER = "exports"
_MAX_BASE_CHARACTERS = 40  # with a suffix of 64 and a step there are at most 128


def list_start_order(index: IndexedRuns) -> list[tuple[RunFolder, RunRecord]]:
    """Return runs in the order in which they are to start: by priority, then the oldest first."""
    oldest_first = index.runs[::-1]
    return sorted(oldest_first, key=lambda pair: -pair[1].priority)


def find_run(layout: StorageLayout, run_id: str) -> RunFolder:
    """Find a run by its id; raises `ApiError` 404, or 500 if its folder cannot be read."""
    try:
        run = RunFolder(layout.run(run_id))
    except ValueError:
        raise not_found("job", run_id) from None
    try:
        exists = run.record_file.is_file()
    except OSError as exc:
        raise _refuse_unreadable(run_id, describe_fault(exc)) from exc
    if not exists:
        raise not_found("job", run_id)
    return run


def is_resumable(run: RunFolder, record: RunRecord) -> bool:
    """Return whether a run can be resumed: paused, or failed or cancelled with its rows read."""
    if record.status in ("failed", "cancelled"):
        return run.has_data
    return record.status == "paused"


@contextmanager
def expect_run(run_id: str) -> Iterator[None]:
    """Translate faults of a run's files to `ApiError`: 404 if deleted, 500 if damaged."""
    try:
        yield
    except FileNotFoundError:
        raise not_found("job", run_id) from None
    except DamagedFileError as exc:
        raise _refuse_unreadable(run_id, exc.reason) from exc


def _refuse_unreadable(run_id: str, reason: str) -> ApiError:
    return ApiError(500, f"job {run_id!r} cannot be read: {reason}", code="job_unreadable")


def list_exports(layout: StorageLayout) -> list[tuple[RunFolder, str]]:
    """Return the runs and model ids of all exports in progress; reads every run's folder."""
    notes = sorted(layout.runs.glob(f"[!.]*/{EXPORTS_FOLDER}/*.json"))
    return [(RunFolder(note.parent.parent), note.stem) for note in notes]


def name_export_note(run: RunFolder, model_id: str) -> Path:
    """Return the path of the note that exists while a checkpoint is being published."""
    return run.path / EXPORTS_FOLDER / f"{model_id}.json"


def has_exports(run: RunFolder) -> bool:
    """Return whether a checkpoint of a run is being published."""
    return any((run.path / EXPORTS_FOLDER).glob("*.json"))


def check_new_model(layout: StorageLayout, runs: RunIndex, model_id: str) -> None:
    """Raise `InvalidRequestError` or `ApiError` 409 for an id that a new model cannot have."""
    try:
        ModelStore(layout).names.check_new_id(model_id)
    except FileExistsError as exc:
        raise ApiError(409, str(exc), param="model") from None
    check_unreserved(layout, runs, model_id)


def check_unreserved(layout: StorageLayout, runs: RunIndex, name: str) -> None:
    """Raise `ApiError` 409 for a name that something in progress will give to its model.

    That is a run, an export, a merge, or an installation from the hub.
    """
    if name in list_merging(layout):
        raise ApiError(409, f"{name!r} is being made by a merge of an adapter", param="model")
    if name in list_installing(layout):
        raise ApiError(409, f"{name!r} is being installed from the hub", param="model")
    for run, model_id in list_exports(layout):
        if model_id == name:
            raise ApiError(409, f"{name!r} is being published by job {run.path.name!r}")
    for _, record in runs.scan().runs:
        if name_model(record) == name:
            raise ApiError(409, f"{name!r} is what job {record.id!r} calls its model")


def has_published(models: ModelStore, run_id: str, model_id: str) -> bool:
    """Return whether a model of this id exists and belongs to this run.

    Raises `DamagedFileError` if the model's lineage, which names its run, cannot be read.
    """
    model = models.find(model_id)
    return model is not None and model.require_lineage().run_id == run_id


def require_lineage(model: StoredModel) -> Lineage:
    """Return a model's lineage; raises `ApiError` 500 if it exists but cannot be read."""
    try:
        return model.require_lineage()
    except DamagedFileError as exc:
        message = f"the lineage of model {model.id!r} cannot be read: {exc.reason}"
        raise ApiError(500, message, param="model", code="lineage_unreadable") from exc


def delete_unneeded_model(
    layout: StorageLayout, runs: RunIndex, evaluations: EvaluationStore, model_id: str
) -> None:
    """Delete a model that no alias, unfinished run or evaluation, or request in progress needs.

    Raises `ModelNotFoundError`, or `ModelInUseError` that names what uses the model.
    """

    def check_runs() -> None:
        found = runs.scan()
        for _, record in found.runs:
            if not record.is_final and record.request.get("model") == model_id:
                raise ModelInUseError(f"job {record.id!r} still needs model {model_id!r}")
        for unreadable in found.unreadable:
            if unreadable.may_need(model_id):
                raise ModelInUseError(_describe_possible_use(unreadable, "model", model_id))
        if evaluation := find_evaluation_of(evaluations, model_id):
            raise ModelInUseError(f"evaluation {evaluation!r} still needs model {model_id!r}")

    ModelStore(layout).delete(model_id, check_runs)


def check_file_unneeded(runs: RunIndex, evaluations: EvaluationStore, file_id: str) -> None:
    """Raise `ApiError` 409 if a job or an evaluation that has not ended needs a file."""
    found = runs.scan()
    for _, record in found.runs:
        if not record.is_final and file_id in _list_needed_files(record):
            message = f"job {record.id!r} still needs file {file_id!r}"
            raise ApiError(409, message, code="in_use")
    for unreadable in found.unreadable:
        if unreadable.may_need(file_id):
            message = _describe_possible_use(unreadable, "file", file_id)
            raise ApiError(409, message, code="in_use")
    if evaluation := find_evaluation_of(evaluations, file_id):
        message = f"evaluation {evaluation!r} still needs file {file_id!r}"
        raise ApiError(409, message, code="in_use")


def _list_needed_files(record: RunRecord) -> list[str | None]:
    mix = record.request.get("training_files") or ()
    named = [record.request.get(name) for name in ("training_file", "validation_file")]
    return [*named, *(entry.get("file") for entry in mix)]


def _describe_possible_use(unreadable: UnreadableRun, kind: str, identifier: str) -> str:
    return (
        f"job {unreadable.run.path.name!r} cannot be read ({unreadable.reason}) and may need "
        f"{kind} {identifier!r}"
    )


def name_model(record: RunRecord) -> str:
    """Return the id of a run's model: base model, suffix and the end of the run's own id."""
    suffix = record.request.get("suffix") or "tuned"
    base = str(record.request.get("model") or "model")[:_MAX_BASE_CHARACTERS]
    return f"{base}-{suffix}-{record.id[-6:]}"
