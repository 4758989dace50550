"""Attention over a running batch on a CPU, each request by itself."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

_attend: Callable[..., tuple[torch.Tensor, None]] = sdpa_attention_forward


def use_attention_by_request() -> None:
    """Have models in this process that use `sdpa` attend as `attend_by_request` does."""
    AttentionInterface.register("sdpa", attend_by_request)


def attend_by_request(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, H, Q, D]: the new tokens of all requests, one after the other
    key: torch.Tensor,  # [1, H_kv, Q, D]
    value: torch.Tensor,  # [1, H_kv, Q, D]
    attention_mask: torch.Tensor | None,  # [1, 1, Q, K]: K tokens in the cache, of all requests
    *args: Any,
    cache: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' `sdpa` does, to `[1, Q, H, D]`, without computing what is masked.

    In a batch with a paged cache transformers lets each new token look at the keys of all requests
    and masks those of the others, so that the work grows with the square of their number: at 16
    requests it is nearly half of a step on a CPU. A GPU has kernels for this, and keeps them. One
    new token is computed in fp32, which on a CPU takes a fifth of the time of bf16.
    """
    is_paged = isinstance(cache, PagedAttentionCache)
    if not is_paged or attention_mask is None or query.device.type != "cpu":
        return _attend(module, query, key, value, attention_mask, *args, cache=cache, **kwargs)
    key, value = cache.update(key, value, module.layer_idx, kwargs)  # [1, H_kv, K, D]
    # Where the tokens of each request begin and end, among the new ones and in the cache.
    spans = zip(
        pairwise(kwargs["cu_seq_lens_q"].tolist()),
        pairwise(kwargs["cu_seq_lens_k"].tolist()),
        strict=True,
    )
    outputs = []
    for new, seen in spans:
        tensors = [
            query[:, :, slice(*new)],
            key[:, :, slice(*seen)],
            value[:, :, slice(*seen)],
            attention_mask[:, :, slice(*new), slice(*seen)],
        ]
        if new[1] - new[0] == 1:  # torch's kernel for bf16 is made for prompts
            tensors = [tensor.float() for tensor in tensors]
        output, _ = _attend(module, *tensors, *args, **kwargs)
        outputs.append(output.to(query.dtype))
    return torch.cat(outputs, dim=1), None
