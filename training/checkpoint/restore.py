"""Resuming from a checkpoint: exact with the same number of workers, else up to rounding."""

import logging
import shutil
from argparse import Namespace
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.checkpoint.format import (
    TAG,
    Checkpoint,
    CheckpointError,
    find_shards,
    quarantine_newer,
    record_complete,
)
from training.checkpoint.writer import agree_on_checkpoint
from training.export.zero_shards import open_weights
from training.place import Place
from training.run.folder import RunFolder

logger = logging.getLogger(__name__)


def find_start(run: RunFolder, place: Place) -> Checkpoint | None:
    """Find the checkpoint that a run resumes from, None for step 0, and prepare the run's folder.

    Later checkpoints are quarantined and later metrics dropped: both will be written again. Raises
    `CheckpointError` as `agree_on_checkpoint` does; the folder is then unchanged.
    """

    def report_damage(name: str, damage: str) -> None:
        if place.rank == 0:
            run.events.add(
                f"The checkpoint {name!r} is damaged and is skipped: {damage}. The run resumes "
                "from an earlier one and takes the steps since then again",
                level="warn",
                code="checkpoint_damaged",
                data={"checkpoint": name},
            )

    last_step = _find_last_step(run, place)
    start = agree_on_checkpoint(run.checkpoints, place, last_step, report_damage)
    if place.rank == 0:
        step = start.step if start else 0
        quarantine_newer(run.checkpoints, start)
        record_complete(run.checkpoints, step)
        run.metrics.drop_after(step)
        run.evaluations.drop_after(step)
    dist.barrier()
    return start


def _find_last_step(run: RunFolder, place: Place) -> int:
    """Return the last step in a run's metrics on rank 0, the only rank that needs it; else 0."""
    if place.rank != 0:
        return 0
    return max((int(line["step"]) for line in run.metrics.read()), default=0)


def load_checkpoint(engine: Any, checkpoint: Checkpoint, place: Place, scratch: Path) -> None:
    """Load weights and optimizer state into an engine that was just started.

    If the number of workers differs, the shards are converted into a universal checkpoint under
    `scratch`, on storage shared by all workers (Lian et al. 2024, arXiv 2406.18820). The engine
    must have been started for that. Raises `CheckpointError` if nothing can be loaded.
    """
    settings = [_get_settings(group) for group in engine.optimizer.param_groups]
    folder = checkpoint.path
    if engine.load_universal_checkpoint():
        folder = scratch
        if place.rank == 0:
            convert_to_universal(find_shards(checkpoint.path), scratch / TAG)
        dist.barrier()
    loaded, _ = engine.load_checkpoint(str(folder), tag=TAG)
    if loaded is None:
        raise CheckpointError(f"DeepSpeed found nothing to load in {checkpoint.path.name!r}")
    if engine.load_universal_checkpoint():
        _load_buffers(engine.module, find_shards(checkpoint.path))
        _separate_groups(engine.optimizer, settings)
    dist.barrier()
    if place.rank == 0:
        shutil.rmtree(scratch, ignore_errors=True)


def convert_to_universal(shards: Path, target: Path) -> None:
    """Convert shards into a universal checkpoint: one folder of whole tensors per parameter."""
    from deepspeed.checkpoint import ds_to_universal

    shutil.rmtree(target.parent, ignore_errors=True)
    target.mkdir(parents=True)
    options = Namespace(
        input_folder=str(shards),
        output_folder=str(target),
        num_extract_workers=1,  # no pool of processes: a worker must not fork
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    said = StringIO()
    with redirect_stdout(said):  # it prints every step, but only the log is read
        ds_to_universal.main(options)
    logger.info("converted %s to a universal checkpoint", shards.parent.name)


def _load_buffers(module: torch.nn.Module, shards: Path) -> None:
    """Load a model's buffers from shards: a universal checkpoint has only parameters."""
    stored = open_weights(shards).tensors
    for name, buffer in module.named_buffers():
        if name in stored:
            stored[name].copy_into(buffer.view(-1))


def _separate_groups(optimizer: Any, settings: list[dict[str, Any]]) -> None:
    """Repair parameter groups that DeepSpeed 0.19.8 mixes up in a universal checkpoint.

    DeepSpeed copies the first group's settings to all groups, which would apply weight decay to
    norms and biases, and lets them share one step counter, which each would increment at each step.
    """
    for group, kept in zip(optimizer.param_groups, settings, strict=True):
        group.update(kept)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


def _get_settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}
