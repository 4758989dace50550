"""Micro batches of token rows, and the cross entropy of the learned tokens.

The rows of a micro batch are padded or concatenated, which gives the same loss. `padded` rows are
padded on the right and need no attention mask: under causal attention no token sees what follows
it, and padding is not learned. `packed` and `flattened` rows are concatenated into a single
sequence without padding; position ids that restart at 0 mark the start of each row for attention.

All tensors of a micro batch are int64 and have the same shape: `[num_rows, longest]` where rows are
padded, `[1, num_tokens]` where concatenated. `labels[r, t]` is the token that position `t` should
predict, so `input_ids[r, t + 1]`, or `IGNORED_LABEL` where nothing is learned.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - the conventional name

from training.batching import BatchLayout
from training.data.text.token_layout import TokenRow
from training.task import MicroBatch

IGNORED_LABEL = -100


def collate_tokens(rows: Sequence[TokenRow], layout: BatchLayout) -> MicroBatch:
    """Build one micro batch; without rows, it has one token, which is not learned."""
    if not rows:
        rows = [(np.zeros(1, np.int32), np.zeros(1, np.bool_))]
    return _pad(rows) if layout == "padded" else _concatenate(rows)


def _pad(rows: Sequence[TokenRow]) -> MicroBatch:
    shape = (len(rows), max(len(ids) for ids, _ in rows))
    input_ids = np.zeros(shape, dtype=np.int64)  # token 0 need not be the model's own padding
    labels = np.full(shape, IGNORED_LABEL, dtype=np.int64)
    for index, (ids, learned) in enumerate(rows):
        input_ids[index, : len(ids)] = ids
        labels[index, : len(ids) - 1] = np.where(learned[1:], ids[1:], IGNORED_LABEL)
    return MicroBatch({"input_ids": torch.from_numpy(input_ids)}, torch.from_numpy(labels))


def _concatenate(rows: Sequence[TokenRow]) -> MicroBatch:
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


def sum_loss(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Return the cross entropy summed over the batch's learned tokens, in fp32; shape `[]`.

    Logits are computed only at the positions that predict a learned token: the output head is the
    largest matrix product of a small model, and its logits are the largest tensor of any model.
    """
    learned = find_learned(batch.labels)
    logits = compute_selected_logits(model, batch, learned)
    return sum_cross_entropy(logits, batch.labels[learned])


def compute_selected_logits(model: Any, batch: MicroBatch, chosen: torch.Tensor) -> torch.Tensor:
    """Compute the logits `[num_selected, vocabulary]` at chosen positions, `[rows, tokens]`."""
    with _select_positions(model.get_output_embeddings(), chosen):
        logits: torch.Tensor = model(**batch.inputs).logits
    if logits.dim() == 3:  # a model without a separate module for its head
        logits = logits[chosen]
    return logits


def find_learned(labels: torch.Tensor) -> torch.Tensor:
    """Return where `labels` has a token to predict; a mask of the same shape.

    If there is none, the first position is chosen, because an empty selection would have no
    gradient to wait for.
    """
    learned = labels != IGNORED_LABEL
    learned[0, 0] |= ~learned.any()
    return learned


def sum_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum the cross entropy of logits `[num_selected, vocabulary]` in fp32; shape `[]`."""
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORED_LABEL, reduction="sum")


@contextmanager
def _select_positions(head: torch.nn.Module | None, chosen: torch.Tensor) -> Iterator[None]:
    """Pass only the chosen positions of the hidden states to a model's output head.

    `chosen` has the shape `[rows, tokens]`, the head's input `[rows, tokens, hidden]`.
    """
    if head is None:
        yield
        return

    def select(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (inputs[0][chosen],)

    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()
