"""The order of an epoch: rows of similar length share a micro batch under a token budget.

The plan of an epoch is a pure function of the lengths, the seed and the epoch, so every worker
works it out alone, and a position in it is just the number of a step.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

IGNORED_LABEL = -100
# Rows are shuffled first and sorted by length only within windows of so many micro batches, so
# that an epoch is no march from the shortest row to the longest.
_WINDOW_MICRO_BATCHES = 32


@dataclass(frozen=True)
class BatchLimits:
    """What one micro batch of one worker may hold: padded tokens, and rows if limited."""

    num_tokens: int
    num_rows: int | None = None

    def admits(self, num_rows: int, longest: int) -> bool:
        """Tell whether `num_rows` rows, padded to the `longest`, fit."""
        return num_rows * longest <= self.num_tokens and (
            self.num_rows is None or num_rows <= self.num_rows
        )


@dataclass(frozen=True)
class Step:
    """The rows of one optimizer step: `micro_batches[i][rank]` are row numbers.

    Every rank has as many micro batches as every other, because ZeRO-3 gathers weights in each
    forward pass together. A rank whose share ran out has an empty one: it goes through the motions
    and adds nothing to the gradient.
    """

    micro_batches: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of all workers."""
        return tuple(row for shares in self.micro_batches for share in shares for row in share)


@dataclass(frozen=True)
class MicroBatch:
    """Padded tensors of `num_rows` rows; all have shape `[num_rows, longest]`."""

    input_ids: torch.Tensor  # int64, padded on the right
    attention_mask: torch.Tensor  # int64, 1 for a token, 0 for padding
    labels: torch.Tensor  # int64, IGNORED_LABEL where nothing is learned


def plan_epoch(
    lengths: Sequence[int],
    limits: BatchLimits,
    *,
    world_size: int,
    accumulation: int,
    seed: int,
    epoch: int,
) -> list[Step]:
    """Plan one epoch in which every row is seen exactly once.

    Raises `ValueError` if a row is longer than a micro batch may be.
    """
    if lengths and max(lengths) > limits.num_tokens:
        raise ValueError(
            f"a row has {max(lengths)} tokens, more than micro_batch_tokens {limits.num_tokens}; "
            "raise micro_batch_tokens or lower max_length"
        )
    order = random.Random(f"{seed}/{epoch}")  # noqa: S311 - a reproducible shuffle, no secret
    micro_batches = _form_micro_batches(lengths, limits, order)
    rounds = _form_rounds(micro_batches, world_size)
    order.shuffle(rounds)
    return [
        Step(tuple(rounds[start : start + accumulation]))
        for start in range(0, len(rounds), accumulation)
    ]


def collate_rows(rows: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> MicroBatch:
    """Pad rows of (token ids, learned mask) on the right to their longest.

    Padding is token 0, neither attended to nor learned, so it need not be the model's own padding
    token. No row at all gives one such token, attended to but not learned.
    """
    longest = max((len(input_ids) for input_ids, _ in rows), default=1)
    shape = (max(1, len(rows)), longest)
    input_ids = torch.zeros(shape, dtype=torch.long)
    attention_mask = torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, IGNORED_LABEL, dtype=torch.long)
    attention_mask[:, 0] = 1
    for index, (ids, learned) in enumerate(rows):
        row = torch.tensor(ids, dtype=torch.long)
        mask = torch.tensor(learned, dtype=torch.bool)
        input_ids[index, : len(ids)] = row
        attention_mask[index, : len(ids)] = 1
        labels[index, : len(ids)] = torch.where(mask, row, IGNORED_LABEL)
    return MicroBatch(input_ids, attention_mask, labels)


def _form_micro_batches(
    lengths: Sequence[int], limits: BatchLimits, order: random.Random
) -> list[tuple[int, ...]]:
    indices = list(range(len(lengths)))
    order.shuffle(indices)
    window = _choose_window(lengths, limits)
    micro_batches: list[tuple[int, ...]] = []
    for start in range(0, len(indices), window):
        by_length = sorted(indices[start : start + window], key=lambda index: lengths[index])
        micro_batches.extend(_cut(by_length, lengths, limits))
    return micro_batches


def _choose_window(lengths: Sequence[int], limits: BatchLimits) -> int:
    average = max(1, sum(lengths) // max(1, len(lengths)))
    num_rows = max(1, limits.num_tokens // average)
    if limits.num_rows is not None:
        num_rows = min(num_rows, limits.num_rows)
    return num_rows * _WINDOW_MICRO_BATCHES


def _cut(
    by_length: Sequence[int], lengths: Sequence[int], limits: BatchLimits
) -> list[tuple[int, ...]]:
    batches: list[list[int]] = []
    for index in by_length:
        if batches and limits.admits(len(batches[-1]) + 1, lengths[index]):
            batches[-1].append(index)
        else:
            batches.append([index])
    return [tuple(batch) for batch in batches]


def _form_rounds(
    micro_batches: Sequence[tuple[int, ...]], world_size: int
) -> list[tuple[tuple[int, ...], ...]]:
    """Give each rank one micro batch per round; neighbours in length, so no rank waits long."""
    full = len(micro_batches) // world_size * world_size
    rounds = [
        tuple(micro_batches[start : start + world_size]) for start in range(0, full, world_size)
    ]
    rest = [index for batch in micro_batches[full:] for index in batch]
    if rest:  # too few micro batches for all ranks: share their rows out evenly
        rounds.append(tuple(tuple(rest[rank::world_size]) for rank in range(world_size)))
    return rounds
