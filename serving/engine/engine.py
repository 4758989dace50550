"""The engine: one loaded model that serves many requests at once with continuous batching."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from serving.adapters.adapter_defaults import read_defaults
from serving.engine.chat_encoder import ChatEncoder
from serving.engine.detokenize import AnswerReader, TokenDecoder
from serving.engine.messages import (
    AdapterLoading,
    AdapterUnloading,
    Generation,
    Likelihood,
    ModelFacts,
    ReportHandler,
    Scoring,
)
from serving.engine.pending_requests import EngineLoad, PendingRequests
from serving.engine.prompt_encoder import PromptEncoder
from serving.engine.remote import RemoteCore
from serving.engine.sampling import Sampling
from serving.errors import DeadlineExceededError, EngineDeadError
from serving.settings import EngineSettings
from serving.wire import Piece, TokenLogprob
from system.library_imports import import_transformers
from templating.renderer import RenderLimits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


class Core(Protocol):
    """The computing part of an engine, in this process or another."""

    facts: ModelFacts

    def is_alive(self) -> bool:
        """Return whether the core accepts requests."""

    def generate(self, command: Generation) -> None:
        """Start to generate; raises `EngineDeadError` if the core has stopped."""

    def score(self, command: Scoring) -> None:
        """Start to score a text; raises `EngineDeadError` if the core has stopped."""

    def load_adapter(self, command: AdapterLoading) -> None:
        """Start to load an adapter; raises `EngineDeadError` if the core has stopped."""

    def unload_adapter(self, command: AdapterUnloading) -> None:
        """Free the memory of an adapter that no request uses."""

    def cancel(self, request_id: str) -> None:
        """Cancel a request of any kind, if it has not ended."""

    def close(self) -> None:
        """End all requests and free the memory; block until done."""


class Engine:
    """A loaded model with a text interface; its `Core` does the computation.

    An adapter of the model is an engine too, which shares the core and its batch (`open_adapter`).

    `prompts` encodes and checks prompts, `requests` has the capacity. Use all methods from one
    event loop, except `start` and `close`, which block.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        settings: EngineSettings,
        start_core: Callable[[ReportHandler], Core],
    ) -> None:
        self._settings = settings
        self._adapter = 0  # the number of the adapter; 0 for the model itself
        self._adapter_numbers = itertools.count(1)
        self.requests = PendingRequests(settings)
        self._core = start_core(self.requests.deliver)
        self._facts = self._core.facts
        self._set_tokenizer(tokenizer)
        try:
            self._chats.start()  # the fork server that it needs is ready by now
        except EngineDeadError:
            self._core.close()
            raise

    def _set_tokenizer(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._token_decoder = TokenDecoder(tokenizer)
        self._chats = ChatEncoder(tokenizer, RenderLimits())
        self._owns_chats = True
        self.prompts = PromptEncoder(tokenizer, self._chats, self._facts)

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
        return self.requests.num_active

    def find_load(self) -> EngineLoad:
        """Return the load at the core's last report."""
        return self.requests.find_load()

    def is_healthy(self) -> bool:
        """Return whether the core is alive and accepts requests."""
        return self._core.is_alive()

    def close(self) -> None:
        """Fail running requests and free the weights; block until done."""
        if self._owns_chats:
            self._chats.close()
        if self._adapter:
            self._core.unload_adapter(AdapterUnloading(self._adapter))
        else:
            self._core.close()

    async def open_adapter(self, path: Path, base_path: Path) -> "Engine":
        """Load an adapter of this engine's model; return an engine that generates with it.

        It shares this engine's process, batch and capacity, and must be closed before this one. It
        has a tokenizer of its own only if that in the adapter's directory differs from the model's
        in `base_path`. Raises `EngineDeadError` if the adapter does not fit the model.
        """
        number = next(self._adapter_numbers)
        defaults = await asyncio.to_thread(
            read_defaults, path, base_path, self._facts, self._tokenizer
        )
        adapted = copy(self)
        adapted._adapter, adapted._facts = number, defaults.facts
        adapted._owns_chats = False
        await self._load_adapter(number, path)
        try:
            if defaults.tokenizer is not None:
                adapted._set_tokenizer(defaults.tokenizer)
                await asyncio.to_thread(adapted._chats.start)
        except BaseException:
            self._core.unload_adapter(AdapterUnloading(number))
            raise
        return adapted

    async def _load_adapter(self, number: int, path: Path) -> None:
        timeout_s = self._settings.request_timeout_s
        progress = None
        with self.requests.register(timeout_s, self._core.cancel) as request:
            self._core.load_adapter(AdapterLoading(request.id, number, path))
            try:
                (progress, *_) = await request.receive()
            finally:
                if progress is None:  # cancelled, or too late
                    self._core.unload_adapter(AdapterUnloading(number))
        if progress is None:
            raise EngineDeadError(f"adapter {path.name!r} was not loaded within {timeout_s:g} s")
        if progress.error is not None:
            raise EngineDeadError(progress.error)

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
        choice_index: int = 0,
        timeout_s: float | None = None,
        in_pieces: bool = True,
        checks_capacity: bool = True,
    ) -> AsyncGenerator[Piece, None]:
        """Generate after `prompt_ids` and yield text once it is certain.

        Closing the iterator cancels the request at once. Without `in_pieces` the text is yielded in
        one or few pieces, which is less work; without `checks_capacity` it is queued however many
        requests there are. Raises, before the first piece, `InvalidRequestError`
        for a prompt that fills the context and `OverloadedError` if the queue is full; at any time
        `DeadlineExceededError` and `EngineDeadError`.
        """
        self.prompts.check_tokens(prompt_ids)
        if checks_capacity:
            self.requests.check_capacity()
        num_left = self.context_length - len(prompt_ids)
        num_new_tokens = min(
            sampling.max_new_tokens or self._settings.default_max_new_tokens, num_left
        )
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        answer = AnswerReader(
            choice_index,
            len(prompt_ids),
            self._facts.eos_ids,
            self._tokenizer,
            self._token_decoder,
            sampling.stop,
        )
        # A stop string has to be detected as soon as it is generated.
        is_streamed = in_pieces or bool(sampling.stop)
        tokens: list[int] = []
        likelihoods: list[Likelihood] = []
        started = time.monotonic()
        piece: Piece | None = None
        with self.requests.register(timeout_s, self._core.cancel, self._adapter) as request:
            end_ids = self._facts.eos_ids
            self._core.generate(
                Generation(request.id, prompt_ids, num_new_tokens, sampling, is_streamed, end_ids)
            )
            while not answer.is_finished:
                if piece is not None:
                    yield piece
                is_finished = False
                for progress in await request.receive():
                    if progress is None:
                        raise DeadlineExceededError(f"no complete answer within {timeout_s:g} s")
                    if progress.error is not None:
                        logger.error("%s failed: %s", request.id, progress.error)
                        raise EngineDeadError("the model's engine failed while it answered")
                    tokens += progress.tokens
                    likelihoods += progress.likelihoods
                    is_finished = is_finished or progress.is_finished
                piece = answer.read(tokens, likelihoods, is_finished=is_finished)
            self.requests.record_duration(time.monotonic() - started)
        assert piece is not None
        yield piece  # the last piece, after its slot in the batch has been freed

    async def score(
        self, token_ids: Sequence[int], num_top: int, *, timeout_s: float | None = None
    ) -> list[TokenLogprob]:
        """Return each token with its log-probability given the tokens before; None for the first.

        Generation pauses meanwhile, because both use all threads. The caller must check the
        capacity with `requests.check_capacity`. Raises the errors of `generate`.
        """
        self.prompts.check_tokens(token_ids, num_free=0)
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        with self.requests.register(timeout_s, self._core.cancel, self._adapter) as request:
            self._core.score(Scoring(request.id, token_ids, num_top))
            (progress, *_) = await request.receive()
        if progress is None:
            raise DeadlineExceededError(f"the text was not scored within {timeout_s:g} s")
        if progress.error is not None:
            raise EngineDeadError(
                f"the model's engine failed while it scored a text: {progress.error}"
            )
        likelihoods = [None, *progress.likelihoods]
        return await asyncio.to_thread(self._token_decoder.describe_all, token_ids, likelihoods)
