"""Conversion of token rows to the tensors of one micro batch; both layouts give the same loss.

`padded` rows are padded on the right and need no attention mask: under causal attention no token
sees what follows it, and padding is not learned. `flattened` rows are concatenated into a single
sequence without padding; position ids that restart at 0 mark the start of each row for attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from training.batching import BatchLayout

IGNORED_LABEL = -100

TokenRow = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]  # token ids, learned; both [length]


@dataclass(frozen=True)
class MicroBatch:
    """A model's inputs and labels; all tensors are int64 and have the same shape.

    The shape is `[num_rows, longest]` where rows are padded, `[1, num_tokens]` where flattened.
    `labels[r, t]` is the token that position `t` should predict, so `input_ids[r, t + 1]`, or
    `IGNORED_LABEL` where nothing is learned.
    """

    inputs: Mapping[str, torch.Tensor]
    labels: torch.Tensor

    def to(self, device: torch.device) -> "MicroBatch":
        """Copy the tensors to a device."""
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return MicroBatch(inputs, self.labels.to(device))


def collate_rows(rows: Sequence[TokenRow], layout: BatchLayout) -> MicroBatch:
    """Build one micro batch; without rows, it has one token, which is not learned."""
    if not rows:
        rows = [(np.zeros(1, np.int32), np.zeros(1, np.bool_))]
    return _pad(rows) if layout == "padded" else _flatten(rows)


def _pad(rows: Sequence[TokenRow]) -> MicroBatch:
    shape = (len(rows), max(len(ids) for ids, _ in rows))
    input_ids = np.zeros(shape, dtype=np.int64)  # token 0 need not be the model's own padding
    labels = np.full(shape, IGNORED_LABEL, dtype=np.int64)
    for index, (ids, learned) in enumerate(rows):
        input_ids[index, : len(ids)] = ids
        labels[index, : len(ids) - 1] = np.where(learned[1:], ids[1:], IGNORED_LABEL)
    return MicroBatch({"input_ids": torch.from_numpy(input_ids)}, torch.from_numpy(labels))


def _flatten(rows: Sequence[TokenRow]) -> MicroBatch:
    inputs = {
        "input_ids": _join([ids for ids, _ in rows]),
        "position_ids": _join([np.arange(len(ids)) for ids, _ in rows]),
    }
    # The last token of a row predicts nothing: the next token belongs to another row.
    labels = [
        np.append(np.where(learned[1:], ids[1:], IGNORED_LABEL), IGNORED_LABEL)
        for ids, learned in rows
    ]
    return MicroBatch(inputs, _join(labels))


def _join(arrays: Sequence[npt.NDArray[np.integer]]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.int64))[None]
