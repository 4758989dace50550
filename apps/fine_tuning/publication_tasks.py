"""Exports: publications of checkpoints, each with a note in its run's folder until it is reported.

The note is written before the work starts. Whichever process ends the export removes the note and
adds an event: the task itself, or the queue if the task was killed. So every export is reported.
"""

import logging
import threading
from typing import IO, Literal, TypedDict

from apps.errors import invalid_input, not_found
from apps.fine_tuning.cluster.tasks import Task, TaskRunner
from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import (
    check_new_model,
    find_run,
    has_published,
    list_exports,
    name_export_note,
)
from apps.fine_tuning.publishing import find_checkpoint, name_checkpoint_model, publish_checkpoint
from apps.settings import UsageLimits
from apps.usage_limits import check_model_space
from serving.errors import OverloadedError
from serving.store.model_store import ModelStore
from storage import versioned_json
from storage.layout import StorageLayout, check_id
from system.fault_log import FaultLog
from system.library_imports import import_transformers
from training.run.folder import RunFolder
from training.run.run_events import EventLevel
from training.spec import SettingError

logger = logging.getLogger(__name__)

_MAX_CONCURRENT_EXPORTS = 4
_RETRY_AFTER_S = 30


class PublishingModel(TypedDict):
    """A model whose publication was started, as the API shows it."""

    id: str
    object: Literal["model"]
    status: Literal["publishing"]
    run_id: str


class CheckpointExporter:
    """Starts and reconciles exports; one per storage root."""

    def __init__(
        self,
        layout: StorageLayout,
        runs: RunIndex,
        runner: TaskRunner,
        sizes: ModelSizes,
        limits: UsageLimits,
    ) -> None:
        self._layout = layout
        self._runs = runs
        self._runner = runner
        self._sizes = sizes
        self._limits = limits
        self._models = ModelStore(layout)
        self._lock = threading.Lock()
        self._locked: dict[str, IO[bytes]] = {}  # locks of the checkpoints, by model id
        # The exports that have a note, by run and model; None until the notes of an earlier
        # process are read. Only this process starts others.
        self._noted: dict[tuple[str, str], RunFolder] | None = None
        self._faults = FaultLog(logger)

    def close(self) -> None:
        """Release every checkpoint."""
        while self._locked:
            self._locked.popitem()[1].close()

    def begin(self, run_id: str, checkpoint_id: str, model_id: str | None) -> PublishingModel:
        """Start publishing a checkpoint of a run, ended or not, as a model.

        The result is an event of the run, and the checkpoint is locked until then. Raises
        `ApiError` 404 for an unknown run or checkpoint, 409 for a model id that is taken and 507 if
        there is no room for the model, and `OverloadedError` if too many exports are in progress.
        """
        from training.checkpoint.format import lock_checkpoint

        run = find_run(self._layout, run_id)
        checkpoint = find_checkpoint(run, checkpoint_id)
        new_bytes = self._estimate_model(run)
        with invalid_input("model"):
            model_id = check_id(model_id or name_checkpoint_model(run, checkpoint.step))
        with self._lock:
            check_new_model(self._layout, self._runs, model_id)
            num_exports = len(self._find_noted())
            if num_exports >= _MAX_CONCURRENT_EXPORTS:
                raise OverloadedError(
                    f"{num_exports} checkpoints are being published; try again when one is done",
                    retry_after_s=_RETRY_AFTER_S,
                )
            check_model_space(self._sizes.measure(), self._limits, new_bytes)
            try:
                self._locked[model_id] = lock_checkpoint(checkpoint)
            except FileNotFoundError:  # superseded just now
                raise not_found("checkpoint", checkpoint_id) from None
            run.events.add(f"Publishing step {checkpoint.step} as {model_id}")
            note = name_export_note(run, model_id)
            note.parent.mkdir(exist_ok=True)
            versioned_json.write_object(note, {"step": checkpoint.step})
            self._find_noted()[run_id, model_id] = run
            task = Task("export", model_id, (run_id, checkpoint.step))
            self._runner.start_task(self._layout.root, task)
        return {"id": model_id, "object": "model", "status": "publishing", "run_id": run_id}

    def reconcile(self) -> None:
        """Report exports that ended without an event; release the checkpoints of ended ones."""
        with self._lock:
            noted = self._find_noted()
            for (run_id, model_id), run in noted.items():
                with self._faults.guard(f"export of model {model_id!r} from run {run_id}"):
                    self._end_lost(run, model_id)
            self._faults.keep_only(
                f"export of model {model_id!r} from run {run_id}" for run_id, model_id in noted
            )
            for model_id in self._locked.keys() - {model_id for _, model_id in self._find_noted()}:
                self._locked.pop(model_id).close()

    def _estimate_model(self, run: RunFolder) -> int:
        """Estimate the bytes of a run's model; 0 if its base model was deleted or replaced.

        The export then fails, and reports that.
        """
        spec = run.read_spec()
        if spec.adapter is None or spec.adapter.export == "merged":
            return self._sizes.estimate_published(spec, None)
        import_transformers()
        from training.preflight.adapter_check import count_learned_parameters

        try:
            return self._sizes.estimate_published(spec, count_learned_parameters(spec))
        except SettingError:
            return 0

    def _end_lost(self, run: RunFolder, model_id: str) -> None:
        """Report the result of an export whose task ended without reporting it."""
        is_running = self._runner.is_running("export", model_id)
        if is_running or not name_export_note(run, model_id).exists():
            return
        if has_published(self._models, run.path.name, model_id):
            # The task was killed between publishing the model and reporting it.
            end_export(run, model_id, f"Published as {model_id}")
        else:
            failure = self._runner.find_task_failure("export", model_id)
            reason = failure or "its process ended without a reason being recorded"
            reason = f"{reason}; publish the checkpoint again"
            end_export(run, model_id, f"{model_id!r} was not published: {reason}", "error")

    def _find_noted(self) -> dict[tuple[str, str], RunFolder]:
        """Return the exports that still have a note."""
        if self._noted is None:
            exports = list_exports(self._layout)
            self._noted = {(run.path.name, model_id): run for run, model_id in exports}
        for run_id, model_id in list(self._noted):
            if not name_export_note(self._noted[run_id, model_id], model_id).exists():
                del self._noted[run_id, model_id]
        return self._noted


def execute_export(layout: StorageLayout, run_id: str, step: int, model_id: str) -> None:
    """Publish a checkpoint as a model and report the result; the body of the task."""
    run = find_run(layout, run_id)
    try:
        publish_checkpoint(layout, run_id, step, model_id)
    except Exception as exc:  # the task ends here, and an event must contain the reason
        logger.exception("checkpoint %d of run %s was not published", step, run_id)
        reason = str(exc).replace(str(layout.root), "<storage>")  # clients read it
        message = f"Step {step} was not published as {model_id!r}: {reason}"
        end_export(run, model_id, message, level="error")
    else:
        end_export(run, model_id, f"Published step {step} as {model_id}")


def end_export(run: RunFolder, model_id: str, message: str, level: EventLevel = "info") -> None:
    """Report the result of an export in an event, and remove its note."""
    run.events.add(message, level=level, data={"model_id": model_id})
    name_export_note(run, model_id).unlink(missing_ok=True)
