"""Figures of the model as it starts, the reference, for every row; computed once for each run.

They are computed before the first step: an adapter starts as the identity or, if it is continued,
as it was, and all weights are those of the base model, so no second model is needed. They are
stored with the rows of the run, so that a run that resumes reads the same values, to the last bit.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.numpy import load, save

from storage import durable
from training.batching import BatchPlan, plan_evaluation
from training.checkpoint.format import CheckpointError
from training.data.faults import RowRole
from training.data.row_table import RowTable
from training.data.run_tables import name_references
from training.engine import StepBatches
from training.monitoring.journal import Journal
from training.place import Place
from training.run.folder import RunFolder
from training.strategy import TrainingEngine
from training.task import Objective, ReferenceObjective

_TENSOR = "references"
_EVENT_INTERVAL_S = 5.0

References = npt.NDArray[np.float32]  # [num_rows, 2]


class ReferencedRows(RowTable):
    """The rows of a table, each with its figures in `references`."""

    def __init__(self, rows: RowTable, references: References) -> None:
        vars(self).update(vars(rows))
        self._references = references

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Read the rows of a micro batch with their figures."""
        found = super().read(indices)
        values = self._references[list(indices)].tolist()
        return [row._replace(references=one) for row, one in zip(found, values, strict=True)]


def add_references(
    engine: TrainingEngine,
    place: Place,
    objective: Objective,
    plan: BatchPlan,
    run: RunFolder,
    journal: Journal,
    rows: RowTable,
    role: RowRole,
    *,
    has_started: bool,
) -> RowTable:
    """Return the rows with the figures of the reference; all workers call this together.

    They are read if they are stored, else computed and stored. Raises `CheckpointError` if they
    are not stored and the model `has_started` to learn.
    """
    path = run.data / name_references(role)
    stored = path.is_file()
    dist.barrier()  # no worker writes the file before all have looked
    if not stored and has_started:
        raise CheckpointError(
            f"{path.name}, with the figures of the model as it started, is missing from the run's "
            "folder: restore it from a backup, or start a new run"
        )
    if not stored:
        computed = _compute(engine, place, objective, rows, plan, role, journal)
        if place.rank == 0:
            durable.write_bytes(path, save({_TENSOR: computed}))
        dist.barrier()
    return ReferencedRows(rows, _read(path, len(rows)))


def _read(path: Path, num_rows: int) -> References:
    try:
        found: References = load(path.read_bytes())[_TENSOR]
    except (SafetensorError, KeyError) as exc:
        raise CheckpointError(f"{path.name} is damaged: {exc}; start a new run") from exc
    if found.shape != (num_rows, 2):
        raise CheckpointError(
            f"{path.name} has the shape {found.shape}, expected {(num_rows, 2)}: the rows of the "
            "run have changed; start a new run"
        )
    return found


def _compute(
    engine: TrainingEngine,
    place: Place,
    objective: Objective,
    rows: RowTable,
    plan: BatchPlan,
    role: RowRole,
    journal: Journal,
) -> References:
    """Compute the figures of all rows, each worker those of its micro batches."""
    what = f"reference log-probabilities of {len(rows):,} {role} rows"
    journal.log_event(f"Computing the {what}")
    found = torch.zeros(len(rows), 2, dtype=torch.float32, device=place.device)
    reported = time.monotonic()
    num_done = 0
    engine.eval()
    with torch.no_grad():
        for step in plan_evaluation(rows.lengths, plan):
            batches = StepBatches(objective, rows, step, plan.layout, place.device)
            for indices, batch in batches.read_share(place.rank, place.world_size):
                values = cast(ReferenceObjective, objective).compute_references(engine, batch)
                if indices:
                    found[list(indices)] = values
            num_done += len(step.rows)
            if time.monotonic() - reported > _EVENT_INTERVAL_S:
                reported = time.monotonic()
                journal.log_event(f"Computed the {what}: {num_done / len(rows):.0%}")
    engine.train()
    dist.all_reduce(found)  # other workers have zeros
    computed: References = found.cpu().numpy()
    return computed
