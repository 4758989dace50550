"""How many steps a run takes, and on how many tokens, before it starts.

With the lengths of the rows, both are those of the run itself: the plan of an epoch is a pure
function of them (`training.batching`).
"""

import math
from typing import NamedTuple

from training.batching import BatchPlan, Lengths, plan_epoch

_MAX_PLANNED_ROWS = 200_000
"""Rows in the epochs that are planned; further epochs count as these do on average."""


class StepEstimate(NamedTuple):
    """Steps of a run and tokens without padding; exact unless rows are estimated."""

    num_steps: int
    num_tokens: int
    is_exact: bool


def count_run(
    lengths: Lengths, plan: BatchPlan, epochs: int, max_steps: int | None
) -> StepEstimate:
    """Count the steps and the tokens of a run over rows of these lengths; shape `[num_rows]`.

    Raises `ValueError` if a row is longer than a micro batch may be.
    """
    in_epoch = int(lengths.sum())
    num_planned = max(1, min(epochs, _MAX_PLANNED_ROWS // max(1, len(lengths))))
    num_steps = num_tokens = 0
    for epoch in range(num_planned):
        steps = plan_epoch(lengths, plan, epoch)
        if max_steps is not None and num_steps + len(steps) >= max_steps:
            rest = range(max_steps - num_steps)
            num_tokens += sum(int(lengths[list(steps[step].rows)].sum()) for step in rest)
            return StepEstimate(max_steps, num_tokens, is_exact=True)
        num_steps += len(steps)
        num_tokens += in_epoch
    if num_planned == epochs:
        return StepEstimate(num_steps, num_tokens, is_exact=True)
    all_steps = round(num_steps * epochs / num_planned)
    return _cut(all_steps, in_epoch * epochs, max_steps)


def estimate_run(
    num_rows: int, num_tokens: int, plan: BatchPlan, epochs: int, max_steps: int | None
) -> StepEstimate:
    """Estimate the steps of a run from the number of rows and tokens of an epoch alone.

    As if rows filled micro batches without padding; so the run takes at least about as many steps.
    """
    micro_batches = math.ceil(num_tokens / plan.num_tokens)
    if plan.num_rows is not None:
        micro_batches = max(micro_batches, math.ceil(num_rows / plan.num_rows))
    steps = math.ceil(micro_batches / (plan.num_shares * plan.accumulation))
    return _cut(steps * epochs, num_tokens * epochs, max_steps)


def _cut(num_steps: int, num_tokens: int, max_steps: int | None) -> StepEstimate:
    if max_steps is None or num_steps <= max_steps:
        return StepEstimate(num_steps, num_tokens, is_exact=False)
    share = max_steps / num_steps
    return StepEstimate(max_steps, round(num_tokens * share), is_exact=False)
