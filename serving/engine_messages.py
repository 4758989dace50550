"""What is asked of an engine's core, and what it tells; none of it needs what computes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from serving.sampling import Sampling


@dataclass(frozen=True)
class Likelihood:
    """Log-probability (natural) of a token at its place, and the likeliest tokens there."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # token ids and log-probabilities, likeliest first


@dataclass(frozen=True)
class ModelFacts:
    """What has to be known of a model in order to ask it for something."""

    context_length: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    sampling: Sampling
    """What a request gets that leaves it open."""


@dataclass(frozen=True)
class Inspection:
    """A request to count the memory of a model, in place of loading it; the answer ends it."""

    path: Path


@dataclass(frozen=True)
class Generation:
    """A request for tokens after a prompt."""

    request_id: str
    prompt_ids: Sequence[int]
    num_new_tokens: int
    sampling: Sampling
    is_streamed: bool
    """Whether to tell of every token, or only when all are there."""


@dataclass(frozen=True)
class Scoring:
    """A request to tell how likely each token of a text is."""

    request_id: str
    token_ids: Sequence[int]
    num_top: int


@dataclass(frozen=True)
class Cancellation:
    """A wish that a request of any kind end."""

    request_id: str


Command = Generation | Scoring | Cancellation


class Progress(NamedTuple):
    """What has become of a request since the last time."""

    request_id: str
    tokens: Sequence[int]
    likelihoods: Sequence[Likelihood]
    """Of these tokens, or none if nobody asked."""
    is_finished: bool
    error: str | None = None


class Report(NamedTuple):
    """What one step gave to all requests; `cache_use` is the share of the cache that is taken."""

    progress: Sequence[Progress]
    num_running: int = 0
    cache_use: float = 0.0


Tell = Callable[[Report | None], None]
"""Takes what an engine tells, from any thread; None once it has ended and tells no more."""
