"""Logits processors that choose the next token of each request in a batch by its own settings."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from serving.transformers_internals import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
    ContinuousBatchingTemperatureLogitsWarper,
    ContinuousBatchingTopKLogitsWarper,
    ContinuousBatchingTopPLogitsWarper,
    FutureRequestState,
    count_request_tokens,
    list_processors,
)

_DRAWN, _GREEDY = -2, -1
"""Values used in place of a noise key: drawn without a seed, and greedy."""
_MASK = 0x7FFFFFFF


def build_processors(
    vocab_size: int, first: ContinuousBatchingLogitsProcessor
) -> ContinuousBatchingLogitsProcessorList:
    """Build the processors that let each request of a batch sample by its own settings.

    `first` runs before them and gets the raw scores of the model.

    transformers builds only the processors that the model's generation config needs, and samples
    either for all requests or for none. Here it samples for none and takes the highest score; noise
    is added to the scores of requests that sample. A greedy request thus gets the first of equal
    scores, which are common in bf16, as with `generate`.
    """
    top_k = TopKLogitsWarper(top_k=vocab_size)
    return list_processors(
        [
            first,
            ContinuousBatchingTemperatureLogitsWarper(TemperatureLogitsWarper(1.0)),
            _TopK(top_k),
            _TopP(TopPLogitsWarper(top_p=1.0)),
            _Noise(),
        ]
    )


class _TopK(ContinuousBatchingTopKLogitsWarper):  # type: ignore[misc]
    """Top-k that sorts only the rows that use it; sorting a whole vocabulary is slow."""

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        selected = tensor_arg[: scores.size(0)] < scores.size(1)
        return _process_rows(super().__call__, scores, tensor_arg, selected)


class _TopP(ContinuousBatchingTopPLogitsWarper):  # type: ignore[misc]
    """Top-p that sorts only the rows that use it."""

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        selected = tensor_arg[: scores.size(0)].view(dtype=torch.float32) < 1.0
        return _process_rows(super().__call__, scores, tensor_arg, selected)


class _Noise(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Adds Gumbel noise, so that the highest score is a sample from the softmax of the scores.

    (Gumbel 1954; Maddison et al. 2014, arXiv 1411.0030.) The noise of a seeded request depends only
    on its seed, the position and the token, not on the rest of the batch.
    """

    supported_kwargs = {"greedy": bool, "seed": int}  # noqa: RUF012 - declared so by transformers
    ignored_kwargs = ()

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.fill_(_DRAWN)

    def prepare_tensor_args(
        self, requests_with_new_token: list[FutureRequestState]
    ) -> torch.Tensor:
        keys = [_find_key(request.state) for request in requests_with_new_token]
        return torch.tensor(keys, dtype=torch.int32, device="cpu")

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        keys = tensor_arg[: scores.size(0)]
        return _process_rows(_add_noise, scores, keys, keys != _GREEDY)


def _find_key(state: Any) -> int:
    """Return the noise key of a seeded request's next token, or `_GREEDY` or `_DRAWN`."""
    kwargs = state.logit_processor_kwargs
    if kwargs.get("greedy", False):
        return _GREEDY
    if (seed := kwargs.get("seed")) is None:
        return _DRAWN
    position = count_request_tokens(state)
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & _MASK


def _add_noise(scores: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    drawn = -torch.empty_like(scores).exponential_().log()  # [B, V]
    keys = keys.unsqueeze(-1)  # [B, 1]
    seeded = make_gumbel_noise(keys, scores.size(1))
    return scores + torch.where(keys == _GREEDY, 0.0, torch.where(keys == _DRAWN, drawn, seeded))


def make_gumbel_noise(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return noise of shape `[B, vocab_size]` that depends only on `keys` `[B, 1]`, 31 bits each.

    Key and token id are mixed by the 32-bit finaliser of MurmurHash3 (Appleby).
    """
    tokens = torch.arange(vocab_size, device=keys.device)  # [V]
    bits = keys.long() ^ (tokens * 0x9E3779B1 & 0xFFFFFFFF)  # [B, V]
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = ((bits ^ bits >> shift) * factor) & 0xFFFFFFFF
    uniform = ((bits ^ bits >> 16).double() + 0.5) / 2**32
    return -torch.log(-torch.log(uniform)).float()


def _process_rows(
    process: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    scores: torch.Tensor,  # [B, V]
    tensor_arg: torch.Tensor,  # [at least B]
    selected: torch.Tensor,  # [B]
) -> torch.Tensor:
    if scores.is_cuda:  # a CUDA graph cannot depend on tensor values
        return process(scores, tensor_arg[: scores.size(0)])
    rows = selected.nonzero().squeeze(-1)
    if len(rows) == 0:
        return scores
    return scores.index_copy(0, rows, process(scores[rows], tensor_arg[rows]))
