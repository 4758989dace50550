"""Attention over a running batch on a CPU, each request by itself."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators import FULL_ATTENTION
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
    has_bias = kwargs.get("position_bias") is not None  # [.., Q, K], of no request in particular
    if not is_paged or has_bias or attention_mask is None or query.device.type != "cpu":
        return _attend(module, query, key, value, attention_mask, *args, cache=cache, **kwargs)
    layer: Any = module.layer_idx
    allocator = cache.layer_to_allocator[layer]
    sees_all = allocator.layer_type == FULL_ATTENTION
    # Where the tokens of each request begin and end, among the new ones and in the cache.
    spans = zip(
        pairwise(kwargs["cu_seq_lens_q"].tolist()),
        pairwise(kwargs["cu_seq_lens_k"][allocator.layer_type].tolist()),
        strict=True,
    )
    read = _store(cache, key, value, layer, kwargs)
    outputs = []
    for new, seen in spans:
        tensors = [query[:, :, slice(*new)], *read(slice(*seen))]
        is_one = new[1] - new[0] == 1
        mask = None  # for one that sees all
        if not (is_one and sees_all):
            mask = attention_mask[:, :, slice(*new), slice(*seen)]
        if is_one:  # torch's kernel for bf16 is made for prompts
            tensors = [tensor.float() for tensor in tensors]
            mask = None if mask is None else mask.float()
        output, _ = _attend(module, *tensors, mask, *args, **kwargs)
        outputs.append(output.to(query.dtype))
    return torch.cat(outputs, dim=1), None


def _store(
    cache: PagedAttentionCache,
    key: torch.Tensor,  # [1, H_kv, Q, D]
    value: torch.Tensor,  # [1, H_kv, Q, D]
    layer: int,
    kwargs: dict[str, Any],
) -> Callable[[slice], tuple[torch.Tensor, torch.Tensor]]:
    """Put new keys and values into a cache; return what reads a span of all, `[1, H_kv, .., D]`.

    Those of one request stay in the processor's caches meanwhile; those of all would not.
    """
    allocator = cache.layer_to_allocator[layer]
    read_index = kwargs["read_index"][allocator.index]  # [K], or nothing where only new ones count
    if allocator.layer_type != FULL_ATTENTION or len(read_index) == 0:
        keys, values = cache.update(key, value, layer, dict(kwargs))
        return lambda span: (keys[:, :, span], values[:, :, span])
    to_write = {**kwargs, "read_index": [read_index[:0]] * len(kwargs["read_index"])}
    cache.update(key, value, layer, to_write)
    pages = allocator.get_cache_for_block_table(layer)
    keys, values = (each.flatten(0, 1) for each in pages)  # [tokens of the cache, H_kv, D]

    def read(span: slice) -> tuple[torch.Tensor, torch.Tensor]:
        index = read_index[span]
        return (
            keys.index_select(0, index).transpose(0, 1).unsqueeze(0),
            values.index_select(0, index).transpose(0, 1).unsqueeze(0),
        )

    return read
