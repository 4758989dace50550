"""Extensions of jobs: a new run that continues a succeeded one, which stays as it is."""

import time
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from apps.errors import ApiError, invalid_input, refuse_full_disk
from apps.fine_tuning.extension.extension_length import check_steps
from apps.fine_tuning.extension.extension_request import (
    ExtensionRequest,
    extend_request,
    extend_settings,
)
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import expect_run, find_run, require_lineage
from apps.fine_tuning.submission import BUILDING_PREFIX, JobCreator
from serving.errors import ModelNotFoundError
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.layout import StorageLayout, new_id
from storage.scratch import build_in_scratch
from system.free_resources import measure_size
from system.library_imports import import_transformers
from training.run.folder import RunFolder
from training.run.run_record import Extension, RunRecord
from training.spec import SettingError, TrainingSpec

if TYPE_CHECKING:
    from training.checkpoint.format import CheckpointSurvey

_ADVICE = {
    "failed": "resume it instead",
    "cancelled": "resume it instead",
    "paused": "resume it instead",
    "running": "wait until it has succeeded",
    "queued": "wait until it has succeeded",
    "validating_files": "wait until it has succeeded",
}


class RunExtender:
    """Creates runs that continue others; `lock` is held for every decision about a run.

    A new run has the status `validating_files` until a task has copied the state of the run that it
    extends (`apps.fine_tuning.validation.row_validation`). So nothing is lost if the queue is
    killed in between, and the run that is extended cannot be deleted before.
    """

    def __init__(self, layout: StorageLayout, lock: Lock, creator: JobCreator) -> None:
        self._layout = layout
        self._lock = lock
        self._creator = creator
        self._models = ModelStore(layout)

    def extend(
        self, run_id: str, request: ExtensionRequest, nodes: Sequence[Mapping[str, float]]
    ) -> RunFolder:
        """Create the run that continues a succeeded one; return it.

        Raises `ApiError` 404 for an unknown run, 400 if it would not become longer, 409 if it has
        not succeeded or what it needs is gone or has changed, and what `JobCreator.create` raises.
        """
        source = find_run(self._layout, run_id)
        with expect_run(run_id), refuse_full_disk():
            before = _read_succeeded(source)
            spec = extend_settings(source, request)
            found = _survey_state(source)
            start = found.complete[0]
            check_steps(source, spec, request, start)
            size_bytes = sum(measure_size(checkpoint.path) for checkpoint in found.complete)
            model = self._find_model(before)
            with model.lock_shared():  # until a record states that it is needed
                _check_revision(before, spec)
                self._creator.check_counts()
                self._creator.check_spec(spec, model, nodes, size_bytes)
                end = Extension(
                    epochs=source.read_spec().epochs,
                    step=start.step,
                    model_id=before.model_id,
                    ended_at=before.finished_at or int(time.time()),
                )
                record = RunRecord(
                    id=new_id("ftjob"),
                    status="validating_files",
                    created_at=int(time.time()),
                    priority=before.priority,
                    training_filename=before.training_filename,
                    base_revision=before.base_revision,
                    extends=(*before.extends, end),
                    extended_from=before.id,
                    writer="queue",
                    request=extend_request(before.request, request),
                )
                with build_in_scratch(self._layout.runs, BUILDING_PREFIX) as building:
                    run = RunFolder(building)
                    run.events.add(f"Extends job {before.id}: copying its checkpoints")
                    _warn_of_unusable(run, found, start.step)
                    run.create(spec, record)
                    with self._lock:
                        _read_succeeded(source)  # unless it was deleted meanwhile
                        return self._creator.add(building, record.id, size_bytes)

    def _find_model(self, record: RunRecord) -> StoredModel:
        """Return the model that a run started from; raises `ApiError` 409 if it was deleted."""
        name = str(record.request.get("model") or "")
        try:
            model = self._models.resolve(name)
        except ModelNotFoundError as exc:
            raise ApiError(
                409,
                f"job {record.id!r} started from model {name!r}, which was deleted, and its "
                "training cannot continue without it; start a new job from "
                f"{record.model_id or 'its model'!r}",
                code="base_model_gone",
            ) from exc
        require_lineage(model)
        return model


def find_extension(runs: RunIndex, run_id: str) -> str | None:
    """Return the id of a run that still has to copy the state of this one; None without any."""
    found = runs.scan()
    for run, record in found.runs:
        if record.extended_from == run_id and not record.is_final and not run.has_data:
            return record.id
    for unreadable in found.unreadable:
        if unreadable.may_need(run_id) and not unreadable.run.has_data:
            return unreadable.run.path.name
    return None


def _read_succeeded(run: RunFolder) -> RunRecord:
    record = run.read_record()
    if record.status != "succeeded":
        raise ApiError(
            409,
            f"job {record.id!r} is {record.status}, expected one that has succeeded; "
            f"{_ADVICE[record.status]}",
            code="job_not_succeeded",
        )
    return record


def _check_revision(record: RunRecord, spec: TrainingSpec) -> None:
    """Raise `ApiError` 409 if the base model is not the one that a run started from."""
    import_transformers()
    from training.base_model import find_revision  # slow to import

    with invalid_input("model", only=SettingError):
        found = find_revision(spec.base_model)
    if record.base_revision is not None and found != record.base_revision:
        raise ApiError(
            409,
            f"job {record.id!r} started from revision {record.base_revision} of model "
            f"{record.request.get('model')!r}, which was replaced by revision {found}, and its "
            "training cannot continue with that; restore the former model, or start a new job "
            f"from {record.model_id or 'its model'!r}",
            code="base_model_changed",
        )


def _survey_state(run: RunFolder) -> "CheckpointSurvey":
    """Return the checkpoints of a run, at least one of them complete.

    Raises `ApiError` 409 if none or no row is left, or if only a newer release can read one.
    """
    from training.checkpoint.format import describe_newer, survey_checkpoints  # slow to import

    found = survey_checkpoints(run.checkpoints)
    if found.newer:
        raise ApiError(
            409,
            f"job {run.path.name!r} cannot be extended: checkpoint {describe_newer(found)}",
            code="checkpoints_newer",
        )
    gone = "rows" if not run.has_data else "checkpoints" if not found.complete else None
    if gone is not None:
        raise ApiError(
            409,
            f"the {gone} of job {run.path.name!r} are gone, so it cannot be extended; "
            "create a new job from its model",
            code="checkpoints_gone",
        )
    return found


def _warn_of_unusable(run: RunFolder, found: "CheckpointSurvey", step: int) -> None:
    """Add an event if checkpoints after the one that a run starts from cannot be used."""
    from training.checkpoint.format import list_unusable_newest

    if names := list_unusable_newest(found):
        run.events.add(
            f"The extended job's {', '.join(names)} cannot be used, because its manifests are "
            f"damaged or missing: its training continues after step {step} instead",
            level="warn",
        )
