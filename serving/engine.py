"""One model, answering many requests at once by continuous batching."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from transformers import ContinuousBatchingConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.requests import GenerationOutput

from serving.answer import AnswerReader, Piece, TokenSpeller, ToldToken
from serving.batching import Likelihood, LikelihoodBook, start_manager
from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
)
from serving.model_loading import collect_eos_ids, load_model
from serving.own_thread import run_in_own_thread
from serving.packed_linear import pack_linear_layers
from serving.process import prepare_process
from serving.sampling import Sampling
from serving.scoring import score_tokens
from serving.settings import EngineSettings

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 30.0
_MAX_RETRY_AFTER_S = 30


@dataclass(frozen=True)
class EngineLoad:
    """How busy an engine is; `cache_use` is the share of its cache that is taken."""

    num_running: int
    num_waiting: int
    cache_use: float


LoadedWeights = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def read_model(path: Path, settings: EngineSettings) -> LoadedWeights:
    """Read a model directory and make it ready for an engine in this process.

    Raises `EngineDeadError` for a model that does not load whole.
    """
    prepare_process(settings.num_threads)
    model, tokenizer = load_model(path)
    pack_linear_layers(model)
    return model, tokenizer


class Engine:
    """A loaded model and the thread that generates with it.

    All methods but `start` and `close`, which block, belong to one event loop.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._eos_ids = collect_eos_ids(model, tokenizer)
        self._model_sampling = model.generation_config
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self._model = model
        self._book = LikelihoodBook()
        self._manager = start_manager(
            model, _configure_batching(settings), self._vocab_size, self._book
        )
        self._speller = TokenSpeller(tokenizer)
        self._scoring = asyncio.Lock()
        self.context_length = _find_context_length(model, self._manager)
        self._request_numbers = itertools.count()
        self._num_active = 0
        self._mean_duration_s = 1.0

    @classmethod
    def start(cls, loaded: LoadedWeights, settings: EngineSettings) -> "Engine":
        """Start the thread that generates with what `read_model` has read; blocks until it is up.

        Raises `EngineDeadError` where it cannot be started.
        """
        try:
            return cls(*loaded, settings)
        except (MemoryError, ValueError, RuntimeError) as exc:
            name = Path(loaded[0].name_or_path).name
            raise EngineDeadError(f"no engine could be started for {name!r}: {exc}") from exc

    @property
    def num_active(self) -> int:
        """Requests that are running or waiting."""
        return self._num_active

    def find_load(self) -> EngineLoad:
        """Tell how busy the engine is just now."""
        processor = self._manager.batch_processor
        if processor is None:  # it has stopped
            return EngineLoad(0, self._num_active, 0.0)
        num_running = len(processor.scheduler.active_requests)
        num_waiting = max(0, self._num_active - num_running)
        cache_use = 1 - float(processor.cache.compute_free_capacity())
        return EngineLoad(num_running, num_waiting, cache_use)

    def is_healthy(self) -> bool:
        """Tell whether the generating thread is alive and takes requests."""
        status = self._manager.background_thread_status
        return self._manager.is_running() and status.can_accept_new_requests() is None

    def close(self) -> None:
        """Stop the thread, fail what is still running, let go of the weights; blocks until then."""
        if not hasattr(self, "_model"):
            return
        if self._manager.is_running():
            self._manager.stop(block=True, timeout=_STOP_TIMEOUT_S, hard_stop=True)
        self._manager.destroy()
        # Whoever still refers to this engine must not keep its weights in memory.
        self._manager.model = None
        del self._model

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Render a conversation with the model's own template, up to where its answer begins.

        Raises `InvalidRequestError` for a model without a template and for what a template
        refuses.
        """
        if self._tokenizer.chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template, so it cannot take messages", param="model"
            )
        try:
            encoded: Any = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_dict=True
            )
        except jinja2.TemplateError as exc:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {exc}", param="messages"
            ) from exc
        return list(encoded["input_ids"])

    def encode_text(self, text: str) -> list[int]:
        """Encode a text as the model's tokenizer does by default, special tokens included."""
        ids: list[int] = self._tokenizer(text)["input_ids"]
        if not ids and self._tokenizer.bos_token_id is not None:  # a text out of nothing
            return [self._tokenizer.bos_token_id]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Write tokens as text, special ones left out."""
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
        """Complete a request's settings with those of the model's generation config."""
        own = self._model_sampling
        if temperature is None:
            temperature = (own.temperature or 1.0) if own is not None and own.do_sample else 0.0
        own_top_p = own.top_p if own is not None and own.top_p is not None else 1.0
        own_top_k = own.top_k if own is not None and own.top_k is not None else 0
        return Sampling(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=own_top_p if top_p is None else top_p,
            top_k=own_top_k if top_k is None else top_k,
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
        """Generate after `prompt_ids`, yielding text as it becomes certain.

        Closing the iterator cancels the request at once. Without `in_pieces` all comes in one or
        few, with less work. Raises, before the first piece, `InvalidRequestError` for a prompt that
        fills the context and `OverloadedError` where there is no room to wait; at any time
        `DeadlineExceededError` and `EngineDeadError`.
        """
        self.check_prompt(prompt_ids)
        self.check_room()
        num_left = self.context_length - len(prompt_ids)
        num_new_tokens = min(
            sampling.max_new_tokens or self._settings.default_max_new_tokens, num_left
        )
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        request_id = f"request-{next(self._request_numbers)}"
        # None stands for the deadline.
        outputs: asyncio.Queue[GenerationOutput | None] = asyncio.Queue()
        deadline = asyncio.get_running_loop().call_later(timeout_s, outputs.put_nowait, None)
        answer = AnswerReader(
            len(prompt_ids), self._eos_ids, self._tokenizer, self._speller, sampling.stop
        )
        if sampling.num_top_logprobs is not None:
            self._book.open(request_id)
        started = time.monotonic()
        is_running = True
        piece: Piece | None = None
        self._num_active += 1
        try:
            handler = outputs.put_nowait
            # A stop string has to be seen as soon as it is there.
            is_streaming = in_pieces or bool(sampling.stop)
            self._submit(request_id, prompt_ids, num_new_tokens, sampling, handler, is_streaming)
            while not answer.is_finished:
                if piece is not None:
                    yield piece
                output = await outputs.get()
                while output is not None and not outputs.empty():  # each has all tokens so far
                    output = outputs.get_nowait()
                if output is None:
                    raise DeadlineExceededError(f"no complete answer within {timeout_s:g} s")
                is_running = not output.is_finished()
                if output.error is not None:
                    logger.error("%s failed: %s", request_id, output.error)
                    raise EngineDeadError("the model's engine failed while it answered")
                piece = answer.read(
                    output.generated_tokens,
                    self._book.read(request_id),
                    is_finished=output.is_finished(),
                )
            self._mean_duration_s += 0.1 * (time.monotonic() - started - self._mean_duration_s)
        finally:
            self._num_active -= 1
            deadline.cancel()
            self._book.close(request_id)
            if is_running:
                self._cancel(request_id)
        assert piece is not None
        yield piece  # the last one, when its place in the batch is free again

    async def score(
        self, token_ids: Sequence[int], num_top: int, *, timeout_s: float | None = None
    ) -> list[ToldToken]:
        """Tell how likely each token of a text is after those before it; the first has no value.

        Generation stands still meanwhile: both want all threads. Whether there is room is for the
        caller to check. Raises as `generate` does.
        """
        self.check_prompt(token_ids, num_free=0)
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        likelihoods: list[Likelihood | None] = [None]
        self._num_active += 1
        try:
            async with asyncio.timeout(timeout_s), self._scoring:
                runs = score_tokens(self._model, token_ids, num_top)
                while run := await run_in_own_thread(self._score_run, runs):
                    likelihoods += run
        except TimeoutError:
            raise DeadlineExceededError(f"the text was not scored within {timeout_s:g} s") from None
        finally:
            self._num_active -= 1
        return await asyncio.to_thread(self._tell, token_ids, likelihoods)

    def _tell(
        self, token_ids: Sequence[int], likelihoods: Sequence[Likelihood | None]
    ) -> list[ToldToken]:
        return [
            self._speller.tell(token_id, likelihood)
            for token_id, likelihood in zip(token_ids, likelihoods, strict=True)
        ]

    def _score_run(self, runs: Iterator[list[Likelihood]]) -> list[Likelihood]:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._manager.pause())
            except RuntimeError as exc:  # what is raised where the thread has stopped
                raise EngineDeadError(f"the model's engine has stopped: {exc}") from exc
            return next(runs, [])

    def check_prompt(self, token_ids: Sequence[int], *, num_free: int = 1) -> None:
        """Raise `InvalidRequestError` for a prompt that does not leave so much of the context."""
        if len(token_ids) + num_free > self.context_length:
            free = f", of which at least {num_free} is for the answer" if num_free else ""
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens, but the model's context holds "
                f"{self.context_length}{free}; shorten it",
                code="context_length_exceeded",
            )
        if not token_ids:
            raise InvalidRequestError("the prompt has no tokens; expected at least one")
        if max(token_ids) >= self._vocab_size:
            raise InvalidRequestError(
                f"the prompt has the token id {max(token_ids)}, but the model's vocabulary has "
                f"{self._vocab_size} tokens"
            )

    def check_room(self, num_requests: int = 1) -> None:
        """Raise `OverloadedError` if so many requests cannot even wait.

        Raises `InvalidRequestError` if they never could.
        """
        # The manager's own queue limit does not help: its thread empties that queue at every step
        # into a list without a limit.
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

    def _submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        num_new_tokens: int,
        sampling: Sampling,
        handler: Callable[[GenerationOutput], None],
        is_streaming: bool,
    ) -> None:
        # What a request yielded between its cancellation and its end has no handler and lands in
        # the manager's common queue, which nobody else reads.
        while self._manager.get_result(timeout=0) is not None:
            pass
        self._manager.register_result_handler(request_id, handler)
        accepted = self._manager.add_request(
            list(prompt_ids),
            request_id=request_id,
            max_new_tokens=num_new_tokens,
            streaming=is_streaming,
            eos_token_id=self._eos_ids or -1,
            **sampling.to_processor_kwargs(self._vocab_size),
        )
        # A thread that died between its last look at the queue and our put answers nobody.
        if accepted is None or not self.is_healthy():
            raise EngineDeadError("the model's engine has stopped")

    def _cancel(self, request_id: str) -> None:
        self._manager.cancel_request(request_id)
        self._manager.output_router.result_handlers.pop(request_id, None)


def _configure_batching(settings: EngineSettings) -> ContinuousBatchingConfig:
    return ContinuousBatchingConfig(
        page_size=settings.page_size,
        num_blocks=settings.num_cache_blocks,
        max_batch_tokens=settings.max_batch_tokens,
        max_requests_per_batch=settings.max_running_requests,
    )


def _find_context_length(model: PreTrainedModel, manager: ContinuousBatchingManager) -> int:
    processor = manager.batch_processor
    assert processor is not None
    num_cache_tokens: int = processor.cache.num_blocks * processor.cb_config.page_size
    own: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(own or num_cache_tokens, num_cache_tokens)
