"""Starting a run again: to resume it after an interruption, or to extend it by more steps."""

import shutil
import time
from typing import Any, Literal

from storage.lineage_file import read_lineage_file
from training.run import run_state
from training.run.folder import RunFolder
from training.run.run_record import Extension
from training.spec import TrainingSpec

# Settings that may change when a run resumes: they do not change which steps it takes.
_CHANGEABLE_SETTINGS = frozenset(
    {
        "accelerator",
        "activation_checkpointing",
        "cpus_per_worker",
        "data_memory_mb",
        "early_stopping_patience",
        "epochs",
        "evaluate_every_steps",
        "export_dtype",
        "keep",
        "keep_checkpoints",
        "max_failures",
        "max_steps",
        "min_workers",
        "num_workers",
        "save_every_steps",
        "threads_per_worker",
        "trackers",
        "wall_clock_breakdown",
    }
)


class RerunError(ValueError):
    """A run cannot be resumed or extended as requested."""


def reopen_run(run: RunFolder, spec: TrainingSpec, fingerprint: str) -> TrainingSpec:
    """Prepare an existing run to resume under `spec`; returns `spec` with its precision resolved.

    A succeeded run needs more epochs than before, or more `max_steps` if these ended it. Raises
    `RerunError` for a setting that may not change, for other data, and for a succeeded run without
    more steps to take.
    """
    record, before = run.read_record(), run.read_spec()
    if spec.precision == "auto":  # was resolved when the run started
        spec = spec.model_copy(update={"precision": before.precision})
    changed = [
        f"{name} was {getattr(before, name)!r} and is {getattr(spec, name)!r}"
        for name in TrainingSpec.model_fields
        if name not in _CHANGEABLE_SETTINGS
        and _select_fixed(before, name) != _select_fixed(spec, name)
    ]
    if changed:
        raise RerunError(
            f"run {run.path.name!r} was started with other settings, which would change its "
            f"steps: {'; '.join(changed)}. Restore them, or choose a new folder"
        )
    if run.read_data_summary()["fingerprint"] != fingerprint:
        raise RerunError(
            f"the rows have changed since run {run.path.name!r} was started with them; restore "
            "them, or choose a new folder"
        )
    _check_length(spec, before)
    if spec.strategy == "pipeline" and spec.num_workers != before.num_workers:
        raise RerunError(
            f"num_workers was {before.num_workers} and is {spec.num_workers}: a pipeline resumes "
            "with the same number of workers"
        )
    if record.status == "succeeded":
        _check_extends(run, spec, before)
        from training.checkpoint.format import (
            list_checkpoints,  # slow to import; nothing else needs it
        )

        if not list_checkpoints(run.checkpoints):
            raise RerunError(
                f"the checkpoints of run {run.path.name!r} are gone, so it cannot be extended; "
                "start a new run from its model"
            )
        end = _rename_model(run, before.epochs, record.model_id)
        run.events.add(f"Extending from {_describe_length(before)} to {_describe_length(spec)}")
        run_state.extend(run, end)
    else:
        run.events.add(f"Starting again; it was {record.status}")
        run_state.reopen(run)
    # The record is written first: if killed in between, the run can still be started again.
    run.write_spec(spec)
    for request in (run.cancel_file, run.pause_file):
        request.unlink(missing_ok=True)
    return spec


def _check_length(spec: TrainingSpec, before: TrainingSpec) -> None:
    """Raise `RerunError` if a run would have fewer steps than it was started with."""
    for name in ("epochs", "max_steps"):
        was, wanted = getattr(before, name), getattr(spec, name)
        if wanted is not None and (was is None or wanted < was):
            raise RerunError(
                f"{name} was {was} and is {wanted}: a run can be extended, not shortened"
            )


def _check_extends(run: RunFolder, spec: TrainingSpec, before: TrainingSpec) -> None:
    """Raise `RerunError` if a succeeded run has no more steps to take."""
    name = find_limit(run, before)
    if getattr(spec, name) == getattr(before, name):
        raise RerunError(
            f"run {run.path.name!r} has succeeded already, with {_describe_length(before)}; raise "
            f"{name} to extend it, or choose a new folder"
        )


def find_limit(run: RunFolder, spec: TrainingSpec) -> Literal["epochs", "max_steps"]:
    """Return the setting that has to be raised to extend a succeeded run, as its last step shows.

    For a run that stopped early that is `epochs`.
    """
    last = run.metrics.read_last()
    is_at_limit = last is not None and last["step"] == spec.max_steps
    return "max_steps" if is_at_limit else "epochs"


def _describe_length(spec: TrainingSpec) -> str:
    limit = "" if spec.max_steps is None else f" and max_steps {spec.max_steps}"
    return f"{spec.epochs} epochs{limit}"


def is_untrained(run: RunFolder) -> bool:
    """Return whether a run ended before its first step, for example because it was refused.

    Such a run has nothing to resume, so its folder can be used with other settings. Any trace of a
    checkpoint or a step counts as training.
    """
    from training.checkpoint.format import read_last_complete, survey_checkpoints  # slow to import

    record = run.read_record()
    if record.status not in ("failed", "cancelled") or record.extends or run.metrics.read_last():
        return False
    found = survey_checkpoints(run.checkpoints)
    has_checkpoints = found.complete or found.damaged or found.incomplete or found.newer
    return not has_checkpoints and not read_last_complete(run.checkpoints)


def _select_fixed(spec: TrainingSpec, name: str) -> Any:
    """Return the part of a setting that must not change."""
    value = getattr(spec, name)
    if name in ("train_file", "validation_file"):  # may have moved; the rows are compared
        return value is None
    if name == "train_files":
        return [entry.weight for entry in value]
    if name == "deepspeed":  # its batch size follows the number of workers
        return {key: setting for key, setting in value.items() if key != "train_batch_size"}
    return value


def _rename_model(run: RunFolder, epochs: int, model_id: str | None) -> Extension:
    """Rename the current model, to make way for the next one."""
    step = int(run.metrics.read()[-1]["step"])
    if run.model.exists():
        kept = run.path / f"model-step-{read_lineage_file(run.model).get('checkpoint_step', step)}"
        shutil.rmtree(kept, ignore_errors=True)  # same weights: more epochs were no better
        run.model.rename(kept)
    return Extension(epochs=epochs, step=step, model_id=model_id, ended_at=int(time.time()))
