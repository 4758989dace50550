"""Publication of a run's checkpoints as models, while the run computes or after it has ended."""

import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypedDict

from apps.errors import not_found
from apps.fine_tuning.index.run_lookup import find_run, name_model
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.layout import StorageLayout
from storage.locks import lock_exclusive
from storage.scratch import remove_abandoned_scratch
from system.library_imports import import_transformers
from training.run.folder import REJECTED_SUFFIX, RunFolder

if TYPE_CHECKING:
    from training.checkpoint.format import Checkpoint

_EXPORT_PREFIX = "export-"
_STEP = re.compile(r"[0-9]{1,18}")


class CheckpointMetricsObject(TypedDict):
    """The metrics of a checkpoint by OpenAI's names; None is unknown."""

    step: float
    train_loss: float
    valid_loss: float | None
    full_valid_loss: float | None
    epoch: float
    trained_tokens: float


class CheckpointObject(TypedDict):
    """A checkpoint as OpenAI's `fine_tuning.job.checkpoint`."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: int
    fine_tuning_job_id: str
    step_number: int
    fine_tuned_model_checkpoint: str
    metrics: CheckpointMetricsObject


def list_run_checkpoints(run: RunFolder) -> list[CheckpointObject]:
    """Describe the checkpoints that a run still has as OpenAI does, newest first."""
    from training.checkpoint.format import list_checkpoints

    job_id = run.path.name
    shown: list[CheckpointObject] = []
    for checkpoint in list_checkpoints(run.checkpoints):
        with suppress(FileNotFoundError):  # superseded just now
            entry: CheckpointObject = {
                "id": name_checkpoint(job_id, checkpoint.step),
                "object": "fine_tuning.job.checkpoint",
                "created_at": int(checkpoint.path.stat().st_mtime),
                "fine_tuning_job_id": job_id,
                "step_number": checkpoint.step,
                "fine_tuned_model_checkpoint": name_checkpoint_model(run, checkpoint.step),
                "metrics": _describe_metrics(checkpoint.progress.summarise()),
            }
            shown.append(entry)
    return shown


def _describe_metrics(figures: dict[str, float]) -> CheckpointMetricsObject:
    """Return a checkpoint's metrics by OpenAI's names; evaluation uses all validation rows."""
    eval_loss = figures.get("eval_loss")
    return {
        "step": figures["step"],
        "train_loss": figures["loss"],
        "valid_loss": eval_loss,
        "full_valid_loss": eval_loss,
        "epoch": figures["epoch"],
        "trained_tokens": figures["trained_tokens"],
    }


def name_checkpoint(job_id: str, step: int) -> str:
    """Return the id of a checkpoint."""
    return f"{job_id}-step-{step}"


def read_checkpoint_step(job_id: str, checkpoint_id: str) -> int | None:
    """Return the step in the id of one of a job's checkpoints; None for any other id."""
    start, _, step = checkpoint_id.rpartition("-")
    is_step = start == f"{job_id}-step" and _STEP.fullmatch(step)
    return int(step) if is_step else None


def name_checkpoint_model(run: RunFolder, step: int) -> str:
    """Return the default id of a checkpoint's model."""
    return f"{name_model(run.read_record())}-step-{step}"


def find_checkpoint(run: RunFolder, checkpoint_id: str) -> "Checkpoint":
    """Return one of the checkpoints that a run still has; raises `ApiError` 404."""
    from training.checkpoint.format import list_checkpoints

    for checkpoint in list_checkpoints(run.checkpoints):
        if name_checkpoint(run.path.name, checkpoint.step) == checkpoint_id:
            return checkpoint
    raise not_found("checkpoint", checkpoint_id)


def publish_checkpoint(layout: StorageLayout, run_id: str, step: int, model_id: str) -> StoredModel:
    """Publish a run's checkpoint as a model, while its training may continue.

    Waits for other publications on the same storage: each may need much memory. Raises
    `CheckpointError`, `ShardsError`, `ConsolidationError` or what the store raises.
    """
    from training.checkpoint.format import CheckpointError, list_checkpoints

    import_transformers()
    from training.launch import disable_progress_bars, export_checkpoint

    run = find_run(layout, run_id)
    disable_progress_bars()
    with lock_exclusive(layout.export_lock):
        _remove_leftovers(run)
        for checkpoint in list_checkpoints(run.checkpoints):
            if checkpoint.step == step:
                break
        else:
            raise CheckpointError(f"the checkpoint of step {step} is gone")
        output = run.path / f"{_EXPORT_PREFIX}step-{step}"
        try:
            export_checkpoint(run, run.read_spec(), checkpoint, output)
            return ModelStore(layout).publish(output, model_id)
        finally:
            _remove_leftovers(run)


def _remove_leftovers(run: RunFolder) -> None:
    """Remove unpublished output; output that failed verification stays, with its report."""
    remove_abandoned_scratch(run.path, f".{_EXPORT_PREFIX}")
    for path in run.path.glob(f"{_EXPORT_PREFIX}*"):
        if not path.name.endswith(REJECTED_SUFFIX):
            shutil.rmtree(path, ignore_errors=True)
