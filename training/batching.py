"""The order of an epoch: which rows share a micro batch, and which micro batches share a step.

The plan of an epoch is a pure function of the lengths, the limits, the seed and the epoch, so every
worker computes it independently, and a position in it is just the number of a step. The plan does
not depend on the current number of workers, which only distribute the micro batches of each step
among themselves. So a run that resumes with fewer or more workers takes the same steps.

Rows that are streamed cannot be shuffled all together. A plan with a `window` shuffles segments of
neighbouring rows, joins several segments to a window, and shuffles and groups the rows within each
window. A window is planned without the others, and no step has rows of two windows.
"""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from training.spec import TrainingSpec
from training.task import find_task

# Rows are padded to the longest of their micro batch, or concatenated. "flattened" is the order of
# concatenated rows in runs that began before rows were packed.
BatchLayout = Literal["padded", "flattened", "packed"]
# Rows are shuffled first and sorted by length only within windows of this many micro batches, so
# that an epoch does not run from the shortest row to the longest.
_WINDOW_MICRO_BATCHES = 32
_WINDOW_SEGMENTS = 16
# The default window of streamed rows: about 4 MB of text, or 100 MB of images; and at least so many
# steps, because the last step of a window may be smaller.
_STREAMED_TOKENS, _STREAMED_ROWS = 1 << 20, 1 << 10
_MIN_WINDOW_STEPS = 8

Lengths = npt.NDArray[np.int32]
_Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchPlan:
    """The settings by which rows become micro batches, and micro batches become steps.

    `num_tokens` limits the tokens of a micro batch, including padding where rows are padded, and
    `num_rows` its rows, if set. A step has `num_shares` × `accumulation` micro batches; the shares
    of a round have similar lengths, so that workers that compute them in parallel finish together.
    `window` is the length of the rows that are shuffled together; None: all rows.
    """

    layout: BatchLayout
    num_tokens: int
    num_rows: int | None
    num_shares: int
    accumulation: int
    seed: int
    window: int | None = None

    @classmethod
    def from_spec(cls, spec: TrainingSpec, layout: BatchLayout, num_shares: int) -> "BatchPlan":
        """Build the plan from the batch settings of a spec."""
        counts_rows = find_task(spec.task).default_micro_batch_size
        num_rows = spec.micro_batch_size or counts_rows
        window = spec.shuffle_window
        if window is None and spec.data_engine == "ray":
            of_step = (num_rows if counts_rows else None) or spec.micro_batch_tokens
            of_step *= num_shares * spec.gradient_accumulation_steps
            smallest = _STREAMED_ROWS if counts_rows else _STREAMED_TOKENS
            window = max(smallest, _MIN_WINDOW_STEPS * of_step)
        return cls(
            layout,
            spec.micro_batch_tokens,
            num_rows,
            num_shares,
            spec.gradient_accumulation_steps,
            spec.seed,
            window,
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


class WindowPosition(NamedTuple):
    """A step as the number of its window in the epoch and its number in the window."""

    window: int
    step: int


class EpochPlan(Sequence[Step]):
    """The steps of one epoch, in which every row occurs exactly once.

    Takes 8 bytes of memory per row for the order, and 8 per micro batch for its start.
    """

    def __init__(
        self,
        rows: _Indices,
        bounds: _Indices,
        micro_batches_per_step: int,
        windows: Sequence[int] | None = None,
    ) -> None:
        self._rows = rows  # [num_rows]
        self._bounds = bounds  # [num_micro_batches + 1]
        self._per_step = micro_batches_per_step
        self._windows = [len(bounds) - 1] if windows is None else list(windows)
        num_steps = [-(-num // micro_batches_per_step) for num in self._windows]
        self._first_steps = np.cumsum([0, *num_steps], dtype=np.int64)  # [num_windows + 1]
        self._first_batches = np.cumsum([0, *self._windows], dtype=np.int64)  # [num_windows + 1]

    def __len__(self) -> int:
        return int(self._first_steps[-1])

    def __getitem__(self, index: int) -> Step:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        window, step = self.locate(index)
        first = int(self._first_batches[window]) + step * self._per_step
        last = min(first + self._per_step, int(self._first_batches[window + 1]))
        bounds = self._bounds[first : last + 1].tolist()
        rows = self._rows[bounds[0] : bounds[-1]].tolist()
        starts = [bound - bounds[0] for bound in bounds]
        micro_batches = (tuple(rows[begin:end]) for begin, end in pairwise(starts))
        return Step(tuple(batch for batch in micro_batches if batch))

    def locate(self, index: int) -> WindowPosition:
        """Return the position of a step; of the end, the beginning of a window after the last."""
        window = int(np.searchsorted(self._first_steps, index, side="right")) - 1
        return WindowPosition(window, index - int(self._first_steps[window]))

    def compute_fingerprint(self) -> str:
        """Hash the order; a run that resumes checks that its order is unchanged."""
        digest = hashlib.sha256(self._rows.tobytes())
        digest.update(self._bounds.tobytes())
        digest.update(str(self._per_step).encode())
        if len(self._windows) > 1:
            digest.update(self._first_batches.tobytes())
        return digest.hexdigest()

    @classmethod
    def join(cls, windows: "Sequence[EpochPlan]") -> "EpochPlan":
        """Join the plans of the windows of an epoch, at least one."""
        starts = np.cumsum([0, *(len(one._rows) for one in windows)], dtype=np.int64)
        ends = [one._bounds[1:] + start for one, start in zip(windows, starts, strict=False)]
        return cls(
            np.concatenate([one._rows for one in windows]),
            np.concatenate([np.zeros(1, np.int64), *ends]),
            windows[0]._per_step,
            [len(one._bounds) - 1 for one in windows],
        )


def plan_epoch(lengths: Lengths, plan: BatchPlan, epoch: int) -> EpochPlan:
    """Plan one epoch over rows of these lengths in tokens; shape `[num_rows]`.

    Raises `ValueError` if a row is longer than a micro batch may be.
    """
    if len(lengths) and int(lengths.max()) > plan.num_tokens:
        raise ValueError(
            f"a row has {lengths.max()} tokens, more than micro_batch_tokens {plan.num_tokens}; "
            "raise micro_batch_tokens or lower max_length"
        )
    windows = choose_windows(lengths, plan, epoch)
    return EpochPlan.join(
        [plan_window(rows, lengths, plan, epoch, place) for place, rows in enumerate(windows)]
    )


def choose_windows(lengths: Lengths, plan: BatchPlan, epoch: int) -> list[_Indices]:
    """Choose the rows of each window of an epoch; their number is the same in every epoch."""
    segments = _cut_segments(lengths, plan)
    if len(segments) == 1:
        return segments
    order = np.random.default_rng([plan.seed, epoch]).permutation(len(segments))
    return [
        np.concatenate([segments[place] for place in places])
        for places in np.array_split(order, _count_windows(lengths, plan, len(segments)))
    ]


def plan_window(
    rows: _Indices, lengths: Lengths, plan: BatchPlan, epoch: int, number: int
) -> EpochPlan:
    """Plan the steps of the rows of one window; `lengths` are those of all rows."""
    is_whole = len(rows) == len(lengths)
    random = np.random.default_rng([plan.seed, epoch, *([] if is_whole else [number])])
    order = rows[random.permutation(len(rows))]
    if plan.layout == "packed" and not _is_limited_by_rows(order, lengths, plan):
        micro_batches = _pack_rows(order, lengths, plan)
    else:
        if plan.layout == "padded":
            num_rows = _count_window_rows(order, lengths, plan)
            order = order[_sort_within_windows(lengths[order], num_rows)]
        bounds = _cut(order, lengths, plan)
        micro_batches = [order[begin:end] for begin, end in pairwise(bounds)]
        if plan.layout == "packed":  # so that the micro batches of a round have similar tokens
            sizes = np.array([lengths[batch].sum() for batch in micro_batches], np.int64)
            places = _sort_within_windows(sizes, _WINDOW_MICRO_BATCHES)
            micro_batches = [micro_batches[place] for place in places]
    own, bounds = _form_rounds(micro_batches, lengths, plan, random)
    return EpochPlan(own, bounds, plan.num_shares * plan.accumulation)


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
    windows = choose_evaluation_windows(lengths, plan)
    return EpochPlan.join([plan_evaluation_window(rows, lengths, plan) for rows in windows])


def choose_evaluation_windows(lengths: Lengths, plan: BatchPlan) -> list[_Indices]:
    """Choose the rows of each window of an evaluation, in the order of the rows."""
    segments = _cut_segments(lengths, plan)
    num_windows = _count_windows(lengths, plan, len(segments))
    places = np.array_split(np.arange(len(segments)), num_windows)
    return [np.concatenate([segments[place] for place in own]) for own in places]


def plan_evaluation_window(rows: _Indices, lengths: Lengths, plan: BatchPlan) -> EpochPlan:
    """Plan the steps of the rows of one window of an evaluation."""
    order = rows[np.argsort(lengths[rows], kind="stable")]
    return EpochPlan(order, _cut(order, lengths, plan), plan.num_shares * plan.accumulation)


def _count_windows(lengths: Lengths, plan: BatchPlan, num_segments: int) -> int:
    total = int(lengths.sum(dtype=np.int64))
    return 1 if plan.window is None else min(num_segments, max(1, -(-total // plan.window)))


def _cut_segments(lengths: Lengths, plan: BatchPlan) -> list[_Indices]:
    """Cut the rows into segments of about the same length; one if all fit into a window."""
    rows = np.arange(len(lengths), dtype=np.int64)
    total = int(lengths.sum(dtype=np.int64))
    if plan.window is None or total <= plan.window:
        return [rows]
    num_segments = -(-total * _WINDOW_SEGMENTS // plan.window)
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    ends = np.searchsorted(before * num_segments // total, np.arange(1, num_segments))
    return [segment for segment in np.split(rows, ends) if len(segment)]


def _count_fitting(order: _Indices, lengths: Lengths, plan: BatchPlan) -> int:
    """Count the rows of average length that have as many tokens as a micro batch."""
    average = max(1, int(lengths[order].mean())) if len(order) else 1
    return max(1, plan.num_tokens // average)


def _is_limited_by_rows(order: _Indices, lengths: Lengths, plan: BatchPlan) -> bool:
    """Return whether many micro batches are full of rows before they are full of tokens.

    Best fit would put the longest rows together, and leave few tokens for the last micro batches.
    """
    return plan.num_rows is not None and plan.num_rows < 2 * _count_fitting(order, lengths, plan)


def _count_window_rows(order: _Indices, lengths: Lengths, plan: BatchPlan) -> int:
    """Count the rows that are sorted together."""
    num_fitting = _count_fitting(order, lengths, plan)
    return min(num_fitting, plan.num_rows or num_fitting) * _WINDOW_MICRO_BATCHES


def _sort_within_windows(sizes: Lengths | _Indices, num: int) -> _Indices:
    """Return the places of `sizes` in which each window of `num` is sorted.

    Alternately ascending and descending, so that sizes are also similar across a border.
    """
    window = np.arange(len(sizes)) // num
    return np.asarray(np.lexsort((sizes * np.where(window % 2, -1, 1), window)))


def _pack_rows(order: _Indices, lengths: Lengths, plan: BatchPlan) -> list[_Indices]:
    """Pack rows into micro batches by best fit.

    Rows are packed in groups, the longest first. Each is added to the micro batch with the fewest
    free tokens that are enough. The micro batch of a group with the most free tokens is packed
    again with the next group.
    """
    size = _count_window_rows(order, lengths, plan)
    packed: list[list[int]] = []
    rest: list[int] = []
    for start in range(0, len(order), size):
        group = np.concatenate([np.array(rest, np.int64), order[start : start + size]])
        group = group[np.argsort(-lengths[group], kind="stable")]
        batches = _fit_rows(group.tolist(), lengths[group].tolist(), plan)
        rest = batches.pop()
        packed += batches
    packed += [rest] if rest else []
    return [np.array(batch, np.int64) for batch in packed]


def _fit_rows(rows: Sequence[int], lengths: Sequence[int], plan: BatchPlan) -> list[list[int]]:
    """Pack rows, the longest first, into micro batches; the last has the most free tokens."""
    batches: list[list[int]] = []
    free: list[int] = []  # tokens of each micro batch
    open_batches: list[tuple[int, int]] = []  # free tokens and number of those that admit rows
    for row, length in zip(rows, lengths, strict=True):
        index = bisect_left(open_batches, (length, 0))
        if index < len(open_batches):
            _, number = open_batches.pop(index)
        else:
            number = len(batches)
            batches.append([])
            free.append(plan.num_tokens)
        batches[number].append(row)
        free[number] -= length
        if plan.num_rows is None or len(batches[number]) < plan.num_rows:
            insort(open_batches, (free[number], number))
    emptiest = free.index(max(free))
    return [*batches[:emptiest], *batches[emptiest + 1 :], batches[emptiest]]


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
    micro_batches: list[_Indices],
    lengths: Lengths,
    plan: BatchPlan,
    random: np.random.Generator,
) -> tuple[_Indices, _Indices]:
    """Shuffle rounds of `num_shares` neighbours; returns rows and the bounds of micro batches.

    The rows of an incomplete last round are split evenly over all shares if they fit, so that no
    worker is idle.
    """
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
    tokens = [lengths[share] for share in shares]
    if all(plan.admits(len(row), int(row.sum()), int(row.max(initial=0))) for row in tokens):
        return shares
    return rest + [rows[:0]] * (plan.num_shares - len(rest))
