"""How the next token is chosen, for every request of a batch on its own terms."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
    ContinuousBatchingTemperatureLogitsWarper,
    ContinuousBatchingTopKLogitsWarper,
    ContinuousBatchingTopPLogitsWarper,
)
from transformers.generation.continuous_batching.requests import FutureRequestState

_COLDEST = 1e-4
"""Below this temperature scores would overflow when divided by it, for the whole batch."""


@dataclass(frozen=True)
class Sampling:
    """What one request asks of the generator, with nothing left open but the token limit."""

    max_new_tokens: int | None = None
    """None for as many as the engine's default."""
    temperature: float = 0.0
    """0 takes the likeliest token every time."""
    top_p: float = 1.0
    """Total probability of the tokens to choose among."""
    top_k: int = 0
    """How many of the likeliest tokens to choose among; 0 for all."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""

    def to_processor_kwargs(self, vocab_size: int) -> dict[str, Any]:
        """Return what the processors below take, kept within what they can compute."""
        is_greedy = self.temperature < _COLDEST or self.top_k == 1
        if is_greedy:
            return {"greedy": True, "temperature": 1.0, "top_k": vocab_size, "top_p": 1.0}
        return {
            "greedy": False,
            "temperature": float(self.temperature),
            "top_k": min(self.top_k or vocab_size, vocab_size),
            "top_p": float(self.top_p),
        }


def build_processors(vocab_size: int) -> ContinuousBatchingLogitsProcessorList:
    """Build the processors that let each request of a batch sample by its own settings.

    transformers builds only those that the model's generation config needs, and knows no greedy
    request within a sampling batch: `top_k=1` still draws among equal scores, which are common in
    bf16, where `generate` takes the first.
    """
    top_k = TopKLogitsWarper(top_k=vocab_size)
    processors: list[ContinuousBatchingLogitsProcessor] = [
        ContinuousBatchingTemperatureLogitsWarper(TemperatureLogitsWarper(1.0)),
        _TopK(top_k),
        _TopP(TopPLogitsWarper(top_p=1.0)),
        _Greedy(),
    ]
    built = ContinuousBatchingLogitsProcessorList(LogitsProcessorList(processors))
    built.tensors_required = len(processors)
    return built


class _TopK(ContinuousBatchingTopKLogitsWarper):  # type: ignore[misc]
    """Sorts only the rows that ask for it; sorting a whole vocabulary is slow."""

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        wanted = tensor_arg[: scores.size(0)] < scores.size(1)
        return _process_rows(super().__call__, scores, tensor_arg, wanted)


class _TopP(ContinuousBatchingTopPLogitsWarper):  # type: ignore[misc]
    """Sorts only the rows that ask for it."""

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        wanted = tensor_arg[: scores.size(0)].view(dtype=torch.float32) < 1.0
        return _process_rows(super().__call__, scores, tensor_arg, wanted)


class _Greedy(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Leaves a greedy request nothing but its first likeliest token, which is then drawn."""

    supported_kwargs = {"greedy": bool}  # noqa: RUF012 - declared so by transformers
    ignored_kwargs = ()

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.fill_(0)

    def prepare_tensor_args(
        self, requests_with_new_token: list[FutureRequestState]
    ) -> torch.Tensor:
        flags = [
            bool(request.state.logit_processor_kwargs.get("greedy", False))
            for request in requests_with_new_token
        ]
        return torch.tensor(flags, dtype=torch.int32, device="cpu")

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        is_greedy = tensor_arg[: scores.size(0)].bool().unsqueeze(-1)  # [B, 1]
        best = scores.argmax(dim=-1, keepdim=True)  # [B, 1], the first of equals
        only_best = torch.full_like(scores, -torch.inf).scatter(-1, best, 0.0)  # [B, V]
        return torch.where(is_greedy, only_best, scores)


def _process_rows(
    process: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    scores: torch.Tensor,  # [B, V]
    tensor_arg: torch.Tensor,  # [at least B]
    wanted: torch.Tensor,  # [B]
) -> torch.Tensor:
    if scores.is_cuda:  # a CUDA graph cannot depend on what the tensors hold
        return process(scores, tensor_arg)
    rows = wanted.nonzero().squeeze(-1)
    if len(rows) == 0:
        return scores
    return scores.index_copy(0, rows, process(scores[rows], tensor_arg[rows]))
