"""Messages to and from an engine's core; importing them needs no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from serving.engine.sampling import Sampling


class Likelihood(NamedTuple):
    """Natural log-probability of a token at its position, and the top tokens there."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # token ids and log-probabilities, likeliest first


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a loaded model that its callers need."""

    context_length: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    sampling: Sampling
    """Defaults for requests that leave sampling settings unset."""


@dataclass(frozen=True)
class Inspection:
    """A request to count the memory of a model instead of loading it; the process then ends."""

    path: Path


@dataclass(frozen=True)
class Generation:
    """A request for tokens after a prompt."""

    request_id: str
    prompt_ids: Sequence[int]
    num_new_tokens: int
    sampling: Sampling
    is_streamed: bool
    """Whether to report every token, or all tokens together at the end."""
    end_ids: Sequence[int]
    """The tokens that end the answer."""


@dataclass(frozen=True)
class Scoring:
    """A request for the log-probability of each token of a text."""

    request_id: str
    token_ids: Sequence[int]
    num_top: int


@dataclass(frozen=True)
class Cancellation:
    """A request to cancel another request of any kind."""

    request_id: str


@dataclass(frozen=True)
class AdapterLoading:
    """A request to load the adapter in a directory under a number, which has no progress."""

    request_id: str
    number: int
    path: Path


@dataclass(frozen=True)
class AdapterUnloading:
    """A request to free the memory of an adapter; nothing is reported."""

    number: int


Command = Generation | Scoring | Cancellation | AdapterLoading | AdapterUnloading


def name_request(number: int, adapter: int) -> str:
    """Return the id of a request; it carries the number of its adapter, 0 for none.

    So the adapter is known wherever the id is, as long as anything refers to the request.
    """
    return f"request-{number}@{adapter}" if adapter else f"request-{number}"


def find_adapter(request_id: str) -> int:
    """Return the number of the adapter in an id of `name_request`."""
    return int(request_id.rpartition("@")[2]) if "@" in request_id else 0


class Progress(NamedTuple):
    """The progress of one request since its last report."""

    request_id: str
    tokens: Sequence[int]
    likelihoods: Sequence[Likelihood]
    """One per token in `tokens`, or empty if the request did not ask for them."""
    is_finished: bool
    error: str | None = None


class Report(NamedTuple):
    """The progress of all requests in one step.

    `cache_use` is the fraction of the cache that is in use.
    """

    progress: Sequence[Progress]
    num_running: int = 0
    cache_use: float = 0.0


ReportHandler = Callable[[Report | None], None]
"""Receives the reports of a core, from any thread; None after the core has ended."""
