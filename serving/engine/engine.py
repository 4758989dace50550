"""The engine: one loaded model that serves many requests at once with continuous batching."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from model_files.tokenizer_faults import TokenizerFaultError, translate_faults
from serving.engine.answer import AnswerReader, Piece, TokenSpeller, ToldToken
from serving.engine.chat_encoder import ChatEncoder
from serving.engine.messages import (
    Generation,
    Likelihood,
    ModelFacts,
    Progress,
    Report,
    Scoring,
    Tell,
)
from serving.engine.remote import RemoteCore
from serving.engine.sampling import Sampling
from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
)
from serving.settings import EngineSettings
from system.library_imports import import_transformers
from templating.renderer import RenderLimits, TemplateValue

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_MAX_RETRY_AFTER_S = 30


@dataclass(frozen=True)
class EngineLoad:
    """The load of an engine; `cache_use` is the fraction of its cache that is in use."""

    num_running: int
    num_waiting: int
    cache_use: float


class Core(Protocol):
    """The computing part of an engine, in this process or another."""

    facts: ModelFacts

    def is_alive(self) -> bool:
        """Return whether the core accepts requests."""

    def generate(self, asked: Generation) -> None:
        """Start to generate; raises `EngineDeadError` if the core has stopped."""

    def score(self, asked: Scoring) -> None:
        """Start to score a text; raises `EngineDeadError` if the core has stopped."""

    def cancel(self, request_id: str) -> None:
        """Cancel a request of any kind, if it has not ended."""

    def close(self) -> None:
        """End all requests and free the memory; block until done."""


_MAX_CHARACTERS_PER_TOKEN = 128


@dataclass(frozen=True)
class _Waiting:
    """A request that waits for progress from the core; None in `queue` signals its deadline."""

    loop: asyncio.AbstractEventLoop
    queue: "asyncio.Queue[Progress | None]" = field(default_factory=asyncio.Queue)


class Engine:
    """A loaded model with a text interface; its `Core` does the computation.

    Use all methods from one event loop, except `start` and `close`, which block.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        settings: EngineSettings,
        start_core: Callable[[Tell], Core],
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._speller = TokenSpeller(tokenizer)
        self._chats = ChatEncoder(tokenizer, RenderLimits())
        self._request_numbers = itertools.count()
        self._waiting: dict[str, _Waiting] = {}
        self._load = EngineLoad(0, 0, 0.0)
        self._num_active = 0
        self._mean_duration_s = 1.0
        self._core = start_core(self._hear)
        self._facts = self._core.facts
        try:
            self._chats.start()  # the fork server that it needs is ready by now
        except EngineDeadError:
            self._core.close()
            raise

    @classmethod
    def start(cls, path: Path, settings: EngineSettings) -> "Engine":
        """Load a model directory in a separate process; block until it is loaded.

        Raises `EngineDeadError` for a model that does not load completely.
        """
        import_transformers()
        from serving.loading.loading import (
            load_tokenizer,  # imports torch, which the core's process imports separately
        )

        tokenizer = load_tokenizer(path)
        return cls(tokenizer, settings, partial(RemoteCore, path, settings))

    @property
    def context_length(self) -> int:
        """Most tokens that a prompt and its answer may have together."""
        return self._facts.context_length

    @property
    def num_active(self) -> int:
        """Number of requests that are running or queued."""
        return self._num_active

    def find_load(self) -> EngineLoad:
        """Return the load at the core's last report."""
        if not self._num_active:
            return EngineLoad(0, 0, 0.0)
        num_running = min(self._load.num_running, self._num_active)
        return replace(
            self._load, num_running=num_running, num_waiting=self._num_active - num_running
        )

    def is_healthy(self) -> bool:
        """Return whether the core is alive and accepts requests."""
        return self._core.is_alive()

    def close(self) -> None:
        """Fail running requests and free the weights; block until done."""
        self._chats.close()
        self._core.close()

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        template_arguments: Mapping[str, TemplateValue] | None = None,
    ) -> list[int]:
        """Encode a conversation with the model's chat template, including the generation prompt.

        Raises the errors of `ChatEncoder.encode`.
        """
        return await self._chats.encode(messages, template_arguments)

    def encode_text(self, text: str) -> list[int]:
        """Encode a text with the tokenizer's defaults, including special tokens.

        Raises `InvalidRequestError` if the tokenizer fails on the text.
        """
        try:
            with translate_faults():
                ids: list[int] = self._tokenizer(text)["input_ids"]
        except TokenizerFaultError as exc:
            raise InvalidRequestError(
                f"the text cannot be encoded for this model: {exc}; change the text, or use "
                "another model",
                code="tokenizer_failed",
            ) from exc
        if not ids and self._tokenizer.bos_token_id is not None:  # an empty prompt
            return [self._tokenizer.bos_token_id]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode tokens to text without special tokens."""
        text = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def fill_sampling(
        self,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        stop: tuple[str, ...] = (),
        seed: int | None = None,
        num_top_logprobs: int | None = None,
    ) -> Sampling:
        """Fill unset sampling settings from the model's generation config."""
        own = self._facts.sampling
        return Sampling(
            max_new_tokens=max_new_tokens,
            temperature=own.temperature if temperature is None else temperature,
            top_p=own.top_p if top_p is None else top_p,
            top_k=own.top_k if top_k is None else top_k,
            stop=stop,
            seed=seed,
            num_top_logprobs=num_top_logprobs,
        )

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        timeout_s: float | None = None,
        in_pieces: bool = True,
    ) -> AsyncGenerator[Piece, None]:
        """Generate after `prompt_ids` and yield text once it is certain.

        Closing the iterator cancels the request at once. Without `in_pieces` the text is yielded in
        one or few pieces, which is less work. Raises, before the first piece, `InvalidRequestError`
        for a prompt that fills the context and `OverloadedError` if the queue is full; at any time
        `DeadlineExceededError` and `EngineDeadError`.
        """
        self.check_prompt(prompt_ids)
        self.check_room()
        num_left = self.context_length - len(prompt_ids)
        num_new_tokens = min(
            sampling.max_new_tokens or self._settings.default_max_new_tokens, num_left
        )
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        answer = AnswerReader(
            len(prompt_ids), self._facts.eos_ids, self._tokenizer, self._speller, sampling.stop
        )
        # A stop string has to be detected as soon as it is generated.
        is_streamed = in_pieces or bool(sampling.stop)
        tokens: list[int] = []
        likelihoods: list[Likelihood] = []
        started = time.monotonic()
        piece: Piece | None = None
        with self._wait(timeout_s) as (request_id, waiting):
            self._core.generate(
                Generation(request_id, prompt_ids, num_new_tokens, sampling, is_streamed)
            )
            while not answer.is_finished:
                if piece is not None:
                    yield piece
                progress = [await waiting.queue.get()]
                while not waiting.queue.empty():
                    progress.append(waiting.queue.get_nowait())
                is_finished = False
                for told in progress:
                    if told is None:
                        raise DeadlineExceededError(f"no complete answer within {timeout_s:g} s")
                    if told.error is not None:
                        logger.error("%s failed: %s", request_id, told.error)
                        raise EngineDeadError("the model's engine failed while it answered")
                    tokens += told.tokens
                    likelihoods += told.likelihoods
                    is_finished = is_finished or told.is_finished
                piece = answer.read(tokens, likelihoods, is_finished=is_finished)
            self._mean_duration_s += 0.1 * (time.monotonic() - started - self._mean_duration_s)
        assert piece is not None
        yield piece  # the last piece, after its slot in the batch has been freed

    async def score(
        self, token_ids: Sequence[int], num_top: int, *, timeout_s: float | None = None
    ) -> list[ToldToken]:
        """Return each token with its log-probability given the tokens before; None for the first.

        Generation pauses meanwhile, because both use all threads. The caller must check the
        capacity with `check_room`. Raises the errors of `generate`.
        """
        self.check_prompt(token_ids, num_free=0)
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        with self._wait(timeout_s) as (request_id, waiting):
            self._core.score(Scoring(request_id, token_ids, num_top))
            told = await waiting.queue.get()
        if told is None:
            raise DeadlineExceededError(f"the text was not scored within {timeout_s:g} s")
        if told.error is not None:
            raise EngineDeadError(f"the model's engine failed while it scored a text: {told.error}")
        return await asyncio.to_thread(self._tell, token_ids, [None, *told.likelihoods])

    def _tell(
        self, token_ids: Sequence[int], likelihoods: Sequence[Likelihood | None]
    ) -> list[ToldToken]:
        return [
            self._speller.tell(token_id, likelihood)
            for token_id, likelihood in zip(token_ids, likelihoods, strict=True)
        ]

    def check_length(self, num_characters: int) -> None:
        """Raise `InvalidRequestError` for a text that is too long to be worth encoding.

        Encoding takes about 1 kB of memory per character, and no vocabulary in use has an average
        of `_MAX_CHARACTERS_PER_TOKEN` characters per token.
        """
        limit = self.context_length * _MAX_CHARACTERS_PER_TOKEN
        if num_characters > limit:
            raise InvalidRequestError(
                f"the prompt has {num_characters} characters, but the model's context of "
                f"{self.context_length} tokens holds at most {limit}; shorten it",
                code="context_length_exceeded",
            )

    def check_prompt(self, token_ids: Sequence[int], *, num_free: int = 1) -> None:
        """Raise `InvalidRequestError` for a prompt that the model does not accept.

        It must not be empty, leave at least `num_free` tokens of the context, and have no token id
        outside the vocabulary.
        """
        if len(token_ids) + num_free > self.context_length:
            free = f", of which at least {num_free} is for the answer" if num_free else ""
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens, but the model's context holds "
                f"{self.context_length}{free}; shorten it",
                code="context_length_exceeded",
            )
        if not token_ids:
            raise InvalidRequestError("the prompt has no tokens; expected at least one")
        if max(token_ids) >= self._facts.vocab_size:
            raise InvalidRequestError(
                f"the prompt has the token id {max(token_ids)}, but the model's vocabulary has "
                f"{self._facts.vocab_size} tokens"
            )

    def check_room(self, num_requests: int = 1) -> None:
        """Raise `OverloadedError` if `num_requests` more requests cannot be queued now.

        Raises `InvalidRequestError` if so many can never be queued.
        """
        # The manager's own queue limit does not help: at every step its thread moves the queue into
        # an unbounded list.
        capacity = self._settings.capacity
        if num_requests > capacity:
            raise InvalidRequestError(
                f"{num_requests} answers are wanted at once, this server takes {capacity} at most"
            )
        if self._num_active + num_requests <= capacity:
            return
        rounds = self._num_active / self._settings.max_running_requests
        raise OverloadedError(
            f"{self._num_active} requests are running or waiting, this model takes {capacity}",
            retry_after_s=min(
                _MAX_RETRY_AFTER_S, max(1, math.ceil(rounds * self._mean_duration_s))
            ),
        )

    @contextmanager
    def _wait(self, timeout_s: float) -> Iterator[tuple[str, _Waiting]]:
        """Register a request under a new id for the core's reports; cancel it on exit."""
        request_id = f"request-{next(self._request_numbers)}"
        waiting = _Waiting(asyncio.get_running_loop())
        deadline = waiting.loop.call_later(timeout_s, waiting.queue.put_nowait, None)
        self._waiting[request_id] = waiting
        self._num_active += 1
        try:
            yield request_id, waiting
        finally:
            self._num_active -= 1
            deadline.cancel()
            if self._waiting.pop(request_id, None) is not None:  # it has not finished
                self._core.cancel(request_id)

    def _hear(self, report: Report | None) -> None:
        """Deliver a report to the waiting requests, one callback per event loop.

        The core's threads call this. None means that the core's process has ended.
        """
        if report is None:
            error = "its process has ended"
            report = Report([Progress(name, (), (), True, error) for name in list(self._waiting)])
        else:
            self._load = EngineLoad(report.num_running, 0, report.cache_use)
        found: dict[asyncio.AbstractEventLoop, list[tuple[_Waiting, Progress]]] = {}
        for progress in report.progress:
            if progress.is_finished:
                waiting = self._waiting.pop(progress.request_id, None)
            else:
                waiting = self._waiting.get(progress.request_id)
            if waiting is not None:  # not cancelled
                found.setdefault(waiting.loop, []).append((waiting, progress))
        for loop, told in found.items():
            with suppress(RuntimeError):  # the loop is closed, so no request waits
                loop.call_soon_threadsafe(_hand_on, told)


def _hand_on(told: Sequence[tuple[_Waiting, Progress]]) -> None:
    for waiting, progress in told:
        waiting.queue.put_nowait(progress)
