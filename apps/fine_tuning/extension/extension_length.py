"""The steps that the settings of an extension allow: it has to take some, and as many as asked."""

import math
from typing import TYPE_CHECKING

from apps.errors import InvalidInputError, invalid_input
from apps.fine_tuning.extension.extension_request import ExtensionRequest
from training.run.folder import RunFolder
from training.spec import TrainingSpec
from training.task import find_task

if TYPE_CHECKING:
    from training.batching import BatchPlan, Lengths
    from training.checkpoint.format import Checkpoint
    from training.preflight.step_estimate import StepEstimate


def check_steps(
    source: RunFolder, spec: TrainingSpec, request: ExtensionRequest, start: "Checkpoint"
) -> None:
    """Raise `InvalidInputError` unless `spec` takes steps after those of `source`.

    Also raise it if `max_steps` is requested alone and the epochs end before, or the other way
    round. Steps are counted from the rows of the run, in the batches that it had. Those of a loop
    of the operator's are unknown, and not checked.
    """
    if spec.loop is not None:
        return
    from training.batching import BatchPlan  # slow to import

    progress = start.progress
    plan = BatchPlan.from_spec(spec, progress.layout, progress.num_shares)
    lengths = _read_lengths(source, spec)
    of_epochs = _count(lengths, plan, spec.epochs)
    last = max(start.step, int((source.metrics.read_last() or {}).get("step", 0)))
    ended = f"job {source.path.name!r} ended at step {last}"
    num_steps = of_epochs.num_steps
    about = "" if of_epochs.is_exact else "about "
    if spec.max_steps is not None and spec.max_steps < num_steps:
        if request.max_steps is None or spec.max_steps <= last:
            raise InvalidInputError(
                f"epochs is {spec.epochs}, which takes {about}{num_steps} steps, but max_steps is "
                f"{spec.max_steps} and {ended}: set max_steps to at least {num_steps}",
                param="max_steps",
            )
        return
    is_cut = spec.max_steps is not None and request.epochs is None and num_steps < spec.max_steps
    if num_steps > last and not is_cut:
        return
    target = last + 1 if spec.max_steps is None else max(spec.max_steps, last + 1)
    asked = "" if spec.max_steps is None else f"max_steps is {spec.max_steps}, but "
    needed = _find_epochs(lengths, plan, of_epochs, spec.epochs, target)
    raise InvalidInputError(
        f"{asked}epochs is {spec.epochs}, which takes {about}{num_steps} steps, and {ended}: set "
        f"epochs to at least {needed}",
        param="epochs",
    )


def _read_lengths(source: RunFolder, spec: TrainingSpec) -> "Lengths":
    """Read the lengths of the training rows of a run; of streamed ones, from their index."""
    from training.data.ray_data.row_index import IndexLayout
    from training.data.row_table import RowTable

    objective = find_task(spec.task).open_objective(spec, source.read_data_summary())
    is_local = spec.data_engine == "local"
    layout = objective.layout if is_local else IndexLayout(objective.layout)
    return RowTable(source.data / "train.arrow", layout).lengths


def _count(lengths: "Lengths", plan: "BatchPlan", epochs: int) -> "StepEstimate":
    from training.preflight.step_estimate import count_run

    with invalid_input("epochs"):
        return count_run(lengths, plan, epochs, None)


def _find_epochs(
    lengths: "Lengths", plan: "BatchPlan", counted: "StepEstimate", epochs: int, num_steps: int
) -> int:
    """Return how many epochs take `num_steps`, given the steps that were counted for `epochs`."""
    found = max(epochs + 1, math.ceil(num_steps * epochs / max(1, counted.num_steps)))
    if counted.is_exact and _count(lengths, plan, found).num_steps < num_steps:
        return found + 1  # epochs differ by a few steps
    return found
