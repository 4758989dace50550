"""A complete fine-tune in order: train, choose a checkpoint, consolidate."""

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.durable import DamagedFileError
from storage.lineage_file import read_lineage_file
from training.cluster.cluster_state import find_cluster_loss
from training.cluster.ray_train import ClusterLostError, train
from training.deepspeed.cpu_op import ensure_cpu_op
from training.monitoring.loss_trend import find_loss_rise
from training.preflight.resources import check_resources, resolve_precision, wants_gpu
from training.run import run_state
from training.run.folder import RunFolder
from training.run.run_record import RunError
from training.spec import TrainingSpec, name_source
from training.task import find_task

if TYPE_CHECKING:
    from training.checkpoint.format import Checkpoint
    from training.export.verification import Verification

logger = logging.getLogger(__name__)


def disable_progress_bars() -> None:
    """Disable the libraries' progress bars in logs and terminals; our own are more informative."""
    import datasets
    from transformers.utils import logging as transformers_logging

    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()


def execute_run(run: RunFolder, spec: TrainingSpec) -> Path | None:
    """Execute a prepared run and update its record; returns the model directory, None if paused.

    The directory does not exist if a loop of the user's own has left no model. A full disk also
    pauses a run. A run that has checkpoints resumes from the last one. The caller needs a connected
    Ray cluster and the lease of the run. Records and raises `SettingError`, `TrainingFailedError`,
    `ConsolidationError` or `CompilerError`. Raises `ClusterLostError` without recording it: the run
    resumes when it is started again.
    """
    from training.base_model import lock_base_model
    from training.cluster.retry import is_full_disk
    from training.monitoring.full_disk_pause import record_full_disk_pause

    run_state.start(run)
    try:
        with lock_base_model(spec.base_model):
            model = _compute(run, spec)
    except KeyboardInterrupt:
        run.events.add("Stopped; it resumes from its last checkpoint when it is started again")
        run_state.cancel(run)
        raise
    except ClusterLostError:
        raise
    except Exception as exc:
        if is_full_disk(exc):
            record_full_disk_pause(run, spec, exc)
            return None
        if loss := find_cluster_loss():
            reason = " ".join(str(exc).split()) or type(exc).__name__
            raise ClusterLostError(f"{loss}; the run ended with: {reason}") from exc
        fail_run(run, exc)
        raise
    if model is None:
        run_state.pause(run)
    return model


def fail_run(run: RunFolder, exc: BaseException) -> None:
    """Write a failure to the run's events and record."""
    logger.error("run %s failed", run.path.name, exc_info=exc)
    record = run.read_record()
    if record.is_final or record.writer == "queue":  # ended or resumed without this process
        return
    message = str(exc) or type(exc).__name__
    run.events.add(message, level="error")
    run_state.fail(run, RunError(code=getattr(exc, "code", type(exc).__name__), message=message))


def succeed_run(run: RunFolder, model_id: str | None = None) -> None:
    """Write the success of a run to its events and record."""
    run.events.add("The fine-tune succeeded", data={"model_id": model_id} if model_id else {})
    run_state.succeed(run, model_id)


def _compute(run: RunFolder, spec: TrainingSpec) -> Path | None:
    import ray

    from training.base_model import find_revision
    from training.preflight.disk_and_memory import check_disk_and_memory
    from training.preflight.preflight import check_settings

    size = check_settings(spec)  # in seconds, before the base model is hashed and any worker starts
    if run.read_record().base_revision is None:
        run.update_record(base_revision=find_revision(spec.base_model))
    _check_base_model(run, spec)  # it may have been replaced since
    alive: list[Any] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node["Resources"] for node in alive if node["Alive"]]
    check_resources(spec, nodes)
    use_gpu = wants_gpu(spec, sum(node.get("GPU", 0.0) for node in nodes))
    if spec.loop is None:  # else it is unknown what the loop needs
        spec = resolve_precision(spec, on_gpu=use_gpu)
        if size is not None:  # else the weights are not downloaded yet
            check_disk_and_memory(run, spec, size, nodes, on_gpu=use_gpu)
        run.write_spec(spec)
    if len(nodes) == 1 and spec.min_workers is None:
        # Ray Train's watcher for node preemption is a process that takes seconds to start.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    # Ray Train notices the end of the workers when it polls them, by default every two seconds.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    if spec.strategy != "ddp" and not use_gpu and ensure_cpu_op():
        run.events.add("Compiled DeepSpeed's CPU operation; this happens once on a machine")
    ending = train(run, spec, use_gpu=use_gpu)
    if ending == "paused":
        if run.requested_pause_reason == "shutdown":
            run.events.add("Paused; it resumes when the application starts again")
        else:
            run.events.add("Paused; it continues from its checkpoint when it is resumed")
        return None
    if spec.loop is not None:
        _export_loop_model(run, spec)
        return run.model
    if rise := find_loss_rise(run.metrics.read()):
        run.events.add(
            rise.describe(),
            level="warn",
            code="loss_rose",
            data={"lowest_loss": rise.lowest, "last_loss": rise.last, "step": rise.lowest_steps[1]},
        )
    _consolidate(run, spec)
    return run.model


def _export_loop_model(run: RunFolder, spec: TrainingSpec) -> None:
    """Export the model of a loop; an event states why there is none, which is no failure.

    That is so if the loop reported no checkpoint, or saved no model in it. Raises as
    `export_checkpoint` does, and `CheckpointError` if all checkpoints are lost or damaged.
    """
    from training.checkpoint.format import has_had_checkpoints
    from training.own_loop.result import NoModelError

    reason = "the loop reported no checkpoint"
    if has_had_checkpoints(run.checkpoints):
        try:
            _consolidate(run, spec)
        except NoModelError as exc:
            reason = f"{exc}. The checkpoints that the loop reported are kept"
        else:
            return
    run.events.add(f"Nothing is published: {reason}", level="warn", code="no_model")


def _consolidate(run: RunFolder, spec: TrainingSpec) -> None:
    from training.checkpoint.format import list_checkpoints
    from training.checkpoint.selection import choose_result

    # Left by a run that was killed here; the model of an earlier end was renamed.
    shutil.rmtree(run.model, ignore_errors=True)
    found = list_checkpoints(run.checkpoints)
    export_checkpoint(run, spec, choose_result(found, spec.keep, spec.criterion), run.model)


def export_checkpoint(
    run: RunFolder, spec: TrainingSpec, checkpoint: "Checkpoint", output: Path
) -> None:
    """Turn a checkpoint of a run into a verified model directory, with lineage and card.

    The training may continue meanwhile. Raises `ConsolidationError`, `ShardsError`, or
    `UnknownModelError` if the base model, which provides the tokenizer, is gone.
    """
    from training.base_model import lock_base_model
    from training.checkpoint.format import find_damage, lock_checkpoint
    from training.export.lineage import write_lineage
    from training.export.zero_shards import ShardsError
    from training.own_loop.result import build_loop_model

    metrics = checkpoint.progress.summarise()
    run.events.add(f"Consolidating the checkpoint of step {checkpoint.step}", data=metrics)
    started = time.monotonic()
    # Meanwhile the training may supersede the checkpoint, and a client may delete the base model.
    with lock_checkpoint(checkpoint), lock_base_model(spec.base_model):
        _check_base_model(run, spec)
        if damage := find_damage(checkpoint, rank=0, world_size=1):
            raise ShardsError(f"the checkpoint of step {checkpoint.step} is damaged: {damage}")

        def add_files(directory: Path) -> None:
            write_lineage(directory, run, spec, metrics)

        if spec.loop is not None:
            verification = build_loop_model(spec, checkpoint.path, output, add_files)
        else:
            verification = _export_trained(run, spec, checkpoint.path, output, add_files)
    took_s = time.monotonic() - started
    # A loop saves no logits to compare with.
    shown = "logits" if spec.loop is None else "loads"
    (check,) = (check for check in verification.checks if check.name == shown)
    run.events.add(
        f"The model is complete after {took_s:.1f} s, and verified: {check.detail}",
        data={"took_s": took_s, "step": checkpoint.step},
    )


def _export_trained(
    run: RunFolder,
    spec: TrainingSpec,
    checkpoint: Path,
    output: Path,
    add_files: Callable[[Path], None],
) -> "Verification":
    """Write the model, or the adapter, that our own loop has trained."""
    from training.export.adapter import export_adapter
    from training.export.consolidate import consolidate_checkpoint
    from training.export.merged import export_merged
    from training.model import DTYPES, find_trained_dtype

    dtype = DTYPES[spec.precision if spec.export_dtype == "auto" else spec.export_dtype]
    objective = find_task(spec.task).open_objective(spec, run.read_data_summary())
    if spec.adapter is not None:
        export = export_merged if spec.adapter.export == "merged" else export_adapter
        return export(
            checkpoint,
            spec,
            spec.adapter,
            output,
            dtype=dtype,
            objective=objective,
            add_files=add_files,
        )
    return consolidate_checkpoint(
        checkpoint,
        spec.base_model,
        output,
        dtype=dtype,
        trained_in=find_trained_dtype(spec),
        template_arguments=spec.template_arguments,
        objective=objective,
        add_files=add_files,
    )


def _check_base_model(run: RunFolder, spec: TrainingSpec) -> None:
    """Raise `UnknownModelError` if the base model is not the one that the run was started with.

    Also raise it if the base model's lineage cannot be read, which the run's model refers to.
    """
    from training.base_model import UnknownModelError, find_revision

    try:
        read_lineage_file(Path(spec.base_model))
    except DamagedFileError as exc:
        raise UnknownModelError(
            f"the lineage of the base model {name_source(spec.base_model)!r} cannot be read: "
            f"{exc.reason}"
        ) from exc
    expected, found = run.read_record().base_revision, find_revision(spec.base_model)
    if expected is not None and found != expected:
        raise UnknownModelError(
            f"the base model {name_source(spec.base_model)!r} is not the one that this run was "
            f"started with: its content was {expected}, and is {found}"
        )
