"""The order of an epoch: which rows share a micro batch, and which micro batches share a step.

The plan of an epoch is a pure function of the lengths, the limits, the seed and the epoch, so every
worker works it out alone, and a position in it is just the number of a step. It does not depend on
how many workers there are at the moment: they only deal the micro batches of a step out among
themselves. So a run that goes on with fewer or more workers takes the same steps.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from training.spec import TrainingSpec

BatchLayout = Literal["padded", "flattened"]
# Rows are shuffled first and sorted by length only within windows of so many micro batches, so
# that an epoch is no march from the shortest row to the longest.
_WINDOW_MICRO_BATCHES = 32

Lengths = npt.NDArray[np.int32]
_Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchPlan:
    """How rows become micro batches, and micro batches steps.

    `num_tokens` bounds a micro batch: counted with padding where rows are padded. Its rows may be
    bounded as well. A step has `num_shares` × `accumulation` micro batches; the shares of a round
    are alike in length, so that workers that compute them side by side end together.
    """

    layout: BatchLayout
    num_tokens: int
    num_rows: int | None
    num_shares: int
    accumulation: int
    seed: int

    @classmethod
    def from_spec(cls, spec: TrainingSpec, layout: BatchLayout, num_shares: int) -> "BatchPlan":
        """Take from a spec what decides about batches."""
        return cls(
            layout,
            spec.micro_batch_tokens,
            spec.micro_batch_size,
            num_shares,
            spec.gradient_accumulation_steps,
            spec.seed,
        )

    def admits(self, num_rows: int, num_tokens: int, longest: int) -> bool:
        """Tell whether rows of so many tokens in all, the `longest` of so many, fit."""
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

    def deal(self, rank: int, world_size: int) -> list[tuple[int, ...]]:
        """The micro batches of one worker.

        Every rank gets as many as every other, because ZeRO-3 gathers weights in each forward pass
        together. Where there are none left, an empty one: its worker goes through the motions and
        adds nothing to the gradient.
        """
        num_rounds = -(-len(self.micro_batches) // world_size)
        mine = list(self.micro_batches[rank::world_size])
        return mine + [()] * (num_rounds - len(mine))


class EpochPlan(Sequence[Step]):
    """The steps of one epoch, in which every row is seen exactly once.

    Holds 8 bytes a row: rows in their order and where each micro batch begins.
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
        """Hash the order; a run that resumes checks that it goes on in the same one."""
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
    """Plan a pass over rows to evaluate on: by length, the whole of it as if it were one epoch."""
    order = np.argsort(lengths, kind="stable")
    bounds = _cut(order, lengths, plan)
    return EpochPlan(order, bounds, plan.num_shares)


def _sort_within_windows(order: _Indices, lengths: Lengths, plan: BatchPlan) -> _Indices:
    average = max(1, int(lengths.mean())) if len(lengths) else 1
    num_rows = max(1, plan.num_tokens // average)
    if plan.num_rows is not None:
        num_rows = min(num_rows, plan.num_rows)
    window = np.arange(len(order)) // (num_rows * _WINDOW_MICRO_BATCHES)
    # Up in one window and down in the next, so that neighbours are alike across the border too.
    direction = np.where(window % 2, -1, 1)
    ranks: _Indices = np.lexsort((lengths[order] * direction, window))
    return order[ranks]


def _cut(order: _Indices, lengths: Lengths, plan: BatchPlan) -> _Indices:
    """Cut rows in their order into micro batches; returns where each begins, and the end."""
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
    """Shuffle rounds of `num_shares` neighbours; returns rows and where each micro batch begins.

    What is left over is shared out evenly where that fits, so that no worker is idle for it.
    """
    micro_batches = [order[begin:end] for begin, end in pairwise(bounds)]
    starts = range(0, len(micro_batches), plan.num_shares)
    rounds = [micro_batches[start : start + plan.num_shares] for start in starts]
    if rounds and len(rounds[-1]) < plan.num_shares:
        rounds[-1] = _share_out(rounds[-1], lengths, plan)
    shuffled = [batch for place in random.permutation(len(rounds)) for batch in rounds[place]]
    rows = np.concatenate(shuffled) if shuffled else np.zeros(0, dtype=np.int64)
    return rows, np.cumsum([0, *(len(batch) for batch in shuffled)], dtype=np.int64)


def _share_out(rest: list[_Indices], lengths: Lengths, plan: BatchPlan) -> list[_Indices]:
    """Deal the rows of too few micro batches out among all shares, or fill up with empty ones."""
    rows = np.concatenate(rest)
    dealt = [rows[share :: plan.num_shares] for share in range(plan.num_shares)]
    if all(_fits(lengths[share], plan) for share in dealt):
        return dealt
    return rest + [rows[:0]] * (plan.num_shares - len(rest))


def _fits(lengths: Lengths, plan: BatchPlan) -> bool:
    longest = int(lengths.max(initial=0))
    return plan.admits(len(lengths), int(lengths.sum()), longest)
