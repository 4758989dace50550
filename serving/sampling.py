"""How the next token of a request is to be chosen."""

from dataclasses import dataclass
from typing import Any

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
    seed: int | None = None
    """The same seed draws the same tokens from the same probabilities."""
    num_top_logprobs: int | None = None
    """How many of the likeliest tokens to tell at each place; None for no log-probabilities."""

    @property
    def is_greedy(self) -> bool:
        """Whether there is nothing to draw."""
        return self.temperature < _COLDEST or self.top_k == 1

    def to_processor_kwargs(self, vocab_size: int) -> dict[str, Any]:
        """Return what the processors below take, kept within what they can compute."""
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
