"""Sampling settings of one request."""

from dataclasses import dataclass
from typing import Any

_COLDEST = 1e-4
"""Lower temperatures are treated as 0: dividing by them would overflow the batch's scores."""


@dataclass(frozen=True)
class Sampling:
    """The complete sampling settings of one request; only the token limit may be unset."""

    max_new_tokens: int | None = None
    """Most tokens to generate; None for the engine's default."""
    temperature: float = 0.0
    """0 always takes the likeliest token."""
    top_p: float = 1.0
    """Total probability of the tokens to choose among."""
    top_k: int = 0
    """How many of the likeliest tokens to choose among; 0 for all."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    seed: int | None = None
    """The same seed draws the same tokens from the same probabilities."""
    num_top_logprobs: int | None = None
    """Number of top tokens to return per position; None for no log-probabilities."""

    @property
    def is_greedy(self) -> bool:
        """Whether decoding is greedy, without sampling."""
        return self.temperature < _COLDEST or self.top_k == 1

    def to_processor_kwargs(self, vocab_size: int) -> dict[str, Any]:
        """Return the arguments of the logits processors, clipped to their supported ranges."""
        kwargs: dict[str, Any] = {"num_top_logprobs": self.num_top_logprobs or 0}
        if self.is_greedy:
            return {**kwargs, "greedy": True, "temperature": 1.0, "top_k": vocab_size, "top_p": 1.0}
        if self.seed is not None:
            kwargs["seed"] = self.seed
        return {
            **kwargs,
            "greedy": False,
            "temperature": float(self.temperature),
            "top_k": min(self.top_k or vocab_size, vocab_size),
            "top_p": float(self.top_p),
        }
