"""Attention in training on CPUs: in fp32, and of concatenated rows separately.

PyTorch's CPU kernel takes several times as long for gradients in bf16 as in fp32. For concatenated
rows, transformers computes the scores of each token with all tokens of the batch and masks those of
other rows.
"""

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

_Attended = tuple[torch.Tensor, None]
_attend: Callable[..., _Attended] = sdpa_attention_forward
_HALF = (torch.bfloat16, torch.float16)


def use_attention_by_row() -> None:
    """Register `attend_by_row` as the `sdpa` attention of all models in this process."""
    AttentionInterface.register("sdpa", attend_by_row)


def attend_by_row(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> _Attended:
    """Compute transformers' `sdpa` attention, `[B, T, H, D]`, without scores of other rows' tokens.

    `query` is `[B, H, T, D]`, `key` and `value` are `[B, H_kv, T, D]`, a mask is `[B, 1, T, T]`.
    The result is rounded to the dtype that transformers' own has; for gradients, `query`, `key` and
    `value` are kept in fp32.
    """
    dtype = query.dtype
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
    if dtype in _HALF:
        query, key, value = query.float(), key.float(), value.float()
        attention_mask = _widen(attention_mask)
        if "position_bias" in kwargs:
            kwargs["position_bias"] = _widen(kwargs["position_bias"])
    lengths = _find_lengths(query.size(2), attention_mask, kwargs.get("position_ids"))
    with torch.autocast("cpu", enabled=False):
        if len(lengths) == 1 or kwargs.get("position_bias") is not None:
            output, _ = _attend(module, query, key, value, attention_mask, *args, **kwargs)
            return output.to(dtype), None
        assert attention_mask is not None
        masks_by_itself = kwargs.get("is_causal")
        if masks_by_itself is None:
            masks_by_itself = getattr(module, "is_causal", True)
        outputs = []
        parts = (torch.split(tensor, lengths, dim=2) for tensor in (query, key, value))
        ends = accumulate(lengths)
        for end, length, *row in zip(ends, lengths, *parts, strict=True):
            own = attention_mask[:, :, end - length : end, end - length : end]
            mask = None if masks_by_itself and _is_causal(own) else own
            output, _ = _attend(module, *row, mask, *args, **kwargs)
            outputs.append(output)
        return torch.cat(outputs, dim=1).to(dtype), None


def _widen(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.float() if tensor is not None and tensor.is_floating_point() else tensor


def _find_lengths(num_tokens: int, mask: torch.Tensor | None, positions: Any) -> list[int]:
    """Return the lengths of concatenated rows if the mask separates them; else that of all tokens.

    The positions of each row, `[1, T]`, start at 0.
    """
    if mask is None or mask.dtype != torch.bool or mask.shape != (1, 1, num_tokens, num_tokens):
        return [num_tokens]
    if not isinstance(positions, torch.Tensor) or positions.shape != (1, num_tokens):
        return [num_tokens]
    starts = (positions[0] == 0).nonzero().flatten().tolist()
    if not starts or starts[0] != 0:
        return [num_tokens]
    bounds = list(pairwise([*starts, num_tokens]))
    within = sum(int(mask[0, 0, start:end, start:end].count_nonzero()) for start, end in bounds)
    if within != int(mask.count_nonzero()):
        return [num_tokens]
    return [end - start for start, end in bounds]


def _is_causal(mask: torch.Tensor) -> bool:
    """Return whether each token attends to itself and all before; then the kernel needs no mask."""
    return torch.equal(mask[0, 0], torch.ones_like(mask[0, 0]).tril())
