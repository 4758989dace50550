"""The order of an epoch: which rows share a micro batch, and which micro batches share a step.

The plan of an epoch is a pure function of the lengths, the limits, the seed and the epoch, so every
worker computes it independently, and a position in it is just the number of a step. The plan does
not depend on the current number of workers, which only distribute the micro batches of each step
among themselves. So a run that resumes with fewer or more workers takes the same steps.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from training.spec import TrainingSpec
from training.task import find_task

BatchLayout = Literal["padded", "flattened"]
# Rows are shuffled first and sorted by length only within windows of this many micro batches, so
# that an epoch does not run from the shortest row to the longest.
_WINDOW_MICRO_BATCHES = 32

Lengths = npt.NDArray[np.int32]
_Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchPlan:
    """The settings by which rows become micro batches, and micro batches become steps.

    `num_tokens` limits the tokens of a micro batch, including padding where rows are padded, and
    `num_rows` its rows, if set. A step has `num_shares` × `accumulation` micro batches; the shares
    of a round have similar lengths, so that workers that compute them in parallel finish together.
    """

    layout: BatchLayout
    num_tokens: int
    num_rows: int | None
    num_shares: int
    accumulation: int
    seed: int

    @classmethod
    def from_spec(cls, spec: TrainingSpec, layout: BatchLayout, num_shares: int) -> "BatchPlan":
        """Build the plan from the batch settings of a spec."""
        return cls(
            layout,
            spec.micro_batch_tokens,
            spec.micro_batch_size or find_task(spec.task).default_micro_batch_size,
            num_shares,
            spec.gradient_accumulation_steps,
            spec.seed,
        )

    def admits(self, num_rows: int, num_tokens: int, longest: int) -> bool:
        """Return whether rows fit, given their total tokens and the tokens of the `longest`."""
        size = num_rows * longest if self.layout == "padded" else num_tokens
        return size <= self.num_tokens and (self.num_rows is None or num_rows <= self.num_rows)


@dataclass(frozen=True)
class Step:
    """The rows of one optimizer step: `micro_batches[i]` are row numbers."""

    micro_batches: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of all micro batches."""
        return tuple(row for micro_batch in self.micro_batches for row in micro_batch)

    def select_micro_batches(self, rank: int, world_size: int) -> list[tuple[int, ...]]:
        """Return the micro batches of one worker.

        Every rank gets the same number, because with ZeRO-3 all ranks gather the weights together
        in each forward pass. A rank for which none is left gets an empty micro batch: its worker
        computes the passes but adds nothing to the gradient.
        """
        num_rounds = -(-len(self.micro_batches) // world_size)
        mine = list(self.micro_batches[rank::world_size])
        return mine + [()] * (num_rounds - len(mine))


class EpochPlan(Sequence[Step]):
    """The steps of one epoch, in which every row occurs exactly once.

    Takes 8 bytes of memory per row for the order, and 8 per micro batch for its start.
    """

    def __init__(self, rows: _Indices, bounds: _Indices, micro_batches_per_step: int) -> None:
        self._rows = rows  # [num_rows]
        self._bounds = bounds  # [num_micro_batches + 1]
        self._per_step = micro_batches_per_step

    def __len__(self) -> int:
        return -(-(len(self._bounds) - 1) // self._per_step)

    def __getitem__(self, index: int) -> Step:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        bounds = self._bounds[index * self._per_step : (index + 1) * self._per_step + 1].tolist()
        rows = self._rows[bounds[0] : bounds[-1]].tolist()
        starts = [bound - bounds[0] for bound in bounds]
        micro_batches = (tuple(rows[begin:end]) for begin, end in pairwise(starts))
        return Step(tuple(batch for batch in micro_batches if batch))

    def compute_fingerprint(self) -> str:
        """Hash the order; a run that resumes checks that its order is unchanged."""
        digest = hashlib.sha256(self._rows.tobytes())
        digest.update(self._bounds.tobytes())
        digest.update(str(self._per_step).encode())
        return digest.hexdigest()


def plan_epoch(lengths: Lengths, plan: BatchPlan, epoch: int) -> EpochPlan:
    """Plan one epoch over rows of these lengths in tokens; shape `[num_rows]`.

    Raises `ValueError` if a row is longer than a micro batch may be.
    """
    if len(lengths) and int(lengths.max()) > plan.num_tokens:
        raise ValueError(
            f"a row has {lengths.max()} tokens, more than micro_batch_tokens {plan.num_tokens}; "
            "raise micro_batch_tokens or lower max_length"
        )
    random = np.random.default_rng([plan.seed, epoch])
    order = random.permutation(len(lengths))
    if plan.layout == "padded":
        order = _sort_within_windows(order, lengths, plan)
    rows, bounds = _form_rounds(order, _cut(order, lengths, plan), lengths, plan, random)
    return EpochPlan(rows, bounds, plan.num_shares * plan.accumulation)


def count_steps(lengths: Lengths, plan: BatchPlan, epochs: int, max_steps: int | None) -> int:
    """Count the steps of a training: those of all epochs, or `max_steps` if that is fewer."""
    num_steps = 0
    for epoch in range(epochs):
        num_steps += len(plan_epoch(lengths, plan, epoch))
        if max_steps is not None and num_steps >= max_steps:
            return max_steps
    return num_steps


def plan_evaluation(lengths: Lengths, plan: BatchPlan) -> EpochPlan:
    """Plan one pass over validation rows by length, with as many micro batches per step as usual.

    All rows together give the result, so a step only groups what a pipeline computes at once.
    """
    order = np.argsort(lengths, kind="stable")
    bounds = _cut(order, lengths, plan)
    return EpochPlan(order, bounds, plan.num_shares * plan.accumulation)


def _sort_within_windows(order: _Indices, lengths: Lengths, plan: BatchPlan) -> _Indices:
    average = max(1, int(lengths.mean())) if len(lengths) else 1
    num_rows = max(1, plan.num_tokens // average)
    if plan.num_rows is not None:
        num_rows = min(num_rows, plan.num_rows)
    window = np.arange(len(order)) // (num_rows * _WINDOW_MICRO_BATCHES)
    # Alternately ascending and descending, so that lengths are also similar across a border.
    direction = np.where(window % 2, -1, 1)
    ranks: _Indices = np.lexsort((lengths[order] * direction, window))
    return order[ranks]


def _cut(order: _Indices, lengths: Lengths, plan: BatchPlan) -> _Indices:
    """Cut ordered rows into micro batches; returns the start of each, and the end."""
    bounds = [0]
    num_tokens = longest = 0
    for place, length in enumerate(lengths[order].tolist()):
        num_rows = place - bounds[-1] + 1
        if not plan.admits(num_rows, num_tokens + length, max(longest, length)):
            bounds.append(place)
            num_tokens = longest = 0
        num_tokens += length
        longest = max(longest, length)
    return np.array([*bounds, len(order)] if len(order) else [0], dtype=np.int64)


def _form_rounds(
    order: _Indices,
    bounds: _Indices,
    lengths: Lengths,
    plan: BatchPlan,
    random: np.random.Generator,
) -> tuple[_Indices, _Indices]:
    """Shuffle rounds of `num_shares` neighbours; returns rows and the bounds of micro batches.

    The rows of an incomplete last round are split evenly over all shares if they fit, so that no
    worker is idle.
    """
    micro_batches = [order[begin:end] for begin, end in pairwise(bounds)]
    starts = range(0, len(micro_batches), plan.num_shares)
    rounds = [micro_batches[start : start + plan.num_shares] for start in starts]
    if rounds and len(rounds[-1]) < plan.num_shares:
        rounds[-1] = _split_into_shares(rounds[-1], lengths, plan)
    shuffled = [batch for place in random.permutation(len(rounds)) for batch in rounds[place]]
    rows = np.concatenate(shuffled) if shuffled else np.zeros(0, dtype=np.int64)
    return rows, np.cumsum([0, *(len(batch) for batch in shuffled)], dtype=np.int64)


def _split_into_shares(rest: list[_Indices], lengths: Lengths, plan: BatchPlan) -> list[_Indices]:
    """Split the rows of an incomplete round over all shares, or add empty micro batches."""
    rows = np.concatenate(rest)
    shares = [rows[share :: plan.num_shares] for share in range(plan.num_shares)]
    if all(_fits(lengths[share], plan) for share in shares):
        return shares
    return rest + [rows[:0]] * (plan.num_shares - len(rest))


def _fits(lengths: Lengths, plan: BatchPlan) -> bool:
    longest = int(lengths.max(initial=0))
    return plan.admits(len(lengths), int(lengths.sum()), longest)
