"""Selection of checkpoints: those to remove, and the one that becomes the model."""

import math
from typing import Literal

from training.checkpoint.format import Checkpoint, CheckpointError
from training.criterion import Criterion


def choose_superseded(checkpoints: list[Checkpoint], *, num_kept: int) -> list[Checkpoint]:
    """Choose the checkpoints to remove: all but the `num_kept` newest and the newest's best."""
    newest_first = sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True)
    best_step = newest_first[0].progress.best_step if newest_first else None
    return [old for old in newest_first[num_kept:] if old.step != best_step]


def choose_result(
    checkpoints: list[Checkpoint],
    keep: Literal["last", "best"],
    criterion: Criterion = Criterion(),  # noqa: B008 - immutable
) -> Checkpoint:
    """Choose the checkpoint on disk that becomes the model: the newest, or the best by `criterion`.

    The best of all evaluations is on disk unless 'keep' was changed during the run. Raises
    `CheckpointError` if there is no checkpoint.
    """
    if not checkpoints:
        raise CheckpointError("no complete checkpoint is on disk")
    if keep == "best":
        evaluated = [
            (criterion.rank(value), -found.step, found)
            for found in checkpoints
            if (value := found.progress.measure(criterion)) is not None and math.isfinite(value)
        ]
        if evaluated:
            return min(evaluated)[-1]  # the steps differ, so checkpoints are never compared
    return max(checkpoints, key=lambda found: found.step)
