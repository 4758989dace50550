"""Attention over a running batch on a CPU, computed separately for each request."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from transformers import AttentionInterface

from serving.cpu.attention_kernel import attend, can_attend
from serving.transformers_internals import (
    FULL_ATTENTION,
    PagedAttentionCache,
    sdpa_attention_forward,
)

_attend: Callable[..., tuple[torch.Tensor, None]] = sdpa_attention_forward


def use_attention_by_request() -> None:
    """Register `attend_by_request` as the `sdpa` attention of all models in this process."""
    AttentionInterface.register("sdpa", attend_by_request)


def attend_by_request(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, H, Q, D]: the new tokens of all requests, concatenated
    key: torch.Tensor,  # [1, H_kv, Q, D]
    value: torch.Tensor,  # [1, H_kv, Q, D]
    attention_mask: torch.Tensor | None,  # [1, 1, Q, K]: K cached tokens of all requests
    *args: Any,
    cache: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute transformers' `sdpa` attention, `[1, Q, H, D]`, without computing masked scores.

    In a batch with a paged cache, transformers computes the scores of each new token with the keys
    of all requests and masks those of other requests. The work grows with the square of the number
    of requests: with 16 requests it is nearly half of a step on a CPU. GPUs have kernels for this,
    which are still used. Requests with one new token, nearly all in a step, use
    `serving.cpu.attention_kernel`.
    """
    is_paged = isinstance(cache, PagedAttentionCache)
    is_plain = all(kwargs.get(name) is None for name in ("position_bias", "softcap"))
    if not (is_paged and is_plain) or attention_mask is None or query.device.type != "cpu":
        return _attend(module, query, key, value, attention_mask, *args, cache=cache, **kwargs)
    layer: Any = module.layer_idx
    layer_type = cache.layer_to_allocator[layer].layer_type
    # [N, 2]: start and end of each request's tokens, among the new tokens and in the cache.
    new = sliding_window_view(kwargs["cu_seq_lens_q"].numpy(), 2).astype(np.int64)
    seen = sliding_window_view(kwargs["cu_seq_lens_k"][layer_type].numpy(), 2).astype(np.int64)
    keys, values, places = _store(cache, layer, key, value, kwargs)
    outputs = query.new_empty(query.size(2), query.size(1), values.size(-1))  # [Q, H, D]
    is_left = np.full(len(new), fill_value=True)
    if can_attend(query):
        is_left = new[:, 1] - new[:, 0] > 1
        scale = kwargs.get("scaling") or query.size(-1) ** -0.5
        rows, spans = new[~is_left, 0], seen[~is_left]
        attend(query[0].transpose(0, 1), rows, keys, values, places, spans, scale, outputs)
    for (first, last), (begin, end) in zip(new[is_left], seen[is_left], strict=True):
        queries, *read = query[:, :, first:last], *_read(keys, values, places[begin:end])
        mask = attention_mask[:, :, first:last, begin:end]
        if last - first == 1:  # torch's bf16 kernel is optimized for prompts, not for one token
            queries, mask, *read = (tensor.float() for tensor in (queries, mask, *read))
        output, _ = _attend(module, queries, *read, mask, *args, **kwargs)  # [1, new, H, D]
        outputs[first:last] = output[0]
    return outputs.unsqueeze(0), None


def _store(
    cache: PagedAttentionCache,
    layer: int,
    key: torch.Tensor,  # [1, H_kv, Q, D]
    value: torch.Tensor,  # [1, H_kv, Q, D]
    kwargs: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write new keys and values to the cache; return its content and the positions to attend to.

    Keys and values are `[T, H_kv, D]`, positions are `[K]` indices into T. With full attention the
    caller gathers them per request: one request fits into the CPU's caches, all together do not.
    """
    allocator = cache.layer_to_allocator[layer]
    read_index = kwargs["read_index"]
    if allocator.layer_type != FULL_ATTENTION or len(read_index[allocator.index]) == 0:
        found = cache.update(key, value, layer, dict(kwargs))  # [1, H_kv, K, D] both
        keys, values = (each[0].transpose(0, 1) for each in found)
        return keys, values, torch.arange(len(keys))
    nothing = [index[:0] for index in read_index]
    cache.update(key, value, layer, {**kwargs, "read_index": nothing})
    pages = allocator.get_cache_for_block_table(layer)  # [pages, size of a page, H_kv, D] both
    keys, values = (each.flatten(0, 1) for each in pages)
    return keys, values, read_index[allocator.index]


def _read(
    keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather the given positions of `[T, H_kv, D]` as `[1, H_kv, .., D]`."""
    copied, others = (
        each.index_select(0, places).transpose(0, 1).unsqueeze(0) for each in (keys, values)
    )
    return copied, others
