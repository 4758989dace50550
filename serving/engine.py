"""One model, answering many requests at once by continuous batching."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import torch
from pydantic import BaseModel, ConfigDict, Field
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.requests import GenerationOutput
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING, FIFOScheduler

from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
)
from serving.model_loading import collect_eos_ids, load_model
from serving.protocol import FinishReason
from serving.sampling import Sampling, build_processors
from serving.text_stream import Detokenizer, StopCutter

logger = logging.getLogger(__name__)

_SCHEDULER_NAME = "tuneserve_fifo"
_STOP_TIMEOUT_S = 30.0
_MAX_RETRY_AFTER_S = 30


class EngineSettings(BaseModel):
    """How one engine uses its machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_threads: int = Field(
        default=1, ge=1, description="Threads of torch, for the whole process: cores really free."
    )
    page_size: int = Field(
        default=32, ge=4, description="Tokens per page of the cache; whole pages are shared."
    )
    num_cache_blocks: int = Field(
        default=512,
        ge=1,
        description="Pages of cache for all requests together; no request can be longer.",
    )
    max_batch_tokens: int = Field(
        default=512, ge=1, description="Most tokens in one forward pass, prompts included."
    )
    max_running_requests: int = Field(
        default=16, ge=1, description="Most requests in one forward pass."
    )
    max_queued_requests: int = Field(
        default=32, ge=0, description="Requests that may wait beyond those; more are refused."
    )
    default_max_new_tokens: int = Field(
        default=256, ge=1, description="Tokens of an answer when the request names no limit."
    )
    request_timeout_s: float = Field(
        default=120.0, gt=0, description="Seconds from a request's arrival to its last token."
    )


@dataclass(frozen=True)
class Piece:
    """Some text of an answer; the last one also says why it ended and counts all tokens.

    `num_completion_tokens` counts every token generated, the one that ended the answer included.
    """

    text: str
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0


class Engine:
    """A loaded model and the thread that generates with it.

    All methods but `load` and `close`, which block, belong to one event loop.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._eos_ids = collect_eos_ids(model, tokenizer)
        self._model_sampling = model.generation_config
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self._manager = _start_manager(model, settings, self._vocab_size)
        self.context_length = _find_context_length(model, self._manager)
        self._request_numbers = itertools.count()
        self._num_active = 0
        self._mean_duration_s = 1.0

    @classmethod
    def load(cls, path: Path, settings: EngineSettings) -> "Engine":
        """Load a model directory and start its thread; blocks for as long as that takes.

        Raises `EngineDeadError` for a model that does not load whole.
        """
        torch.set_num_threads(settings.num_threads)
        model, tokenizer = load_model(path)
        try:
            return cls(model, tokenizer, settings)
        except (MemoryError, ValueError, RuntimeError) as exc:
            raise EngineDeadError(f"no engine could be started for {path.name!r}: {exc}") from exc

    @property
    def num_active(self) -> int:
        """Requests that are running or waiting."""
        return self._num_active

    def is_healthy(self) -> bool:
        """Tell whether the generating thread is alive and takes requests."""
        status = self._manager.background_thread_status
        return self._manager.is_running() and status.can_accept_new_requests() is None

    def close(self) -> None:
        """Stop the thread and fail what is still running; blocks until the thread has ended."""
        if self._manager.is_running():
            self._manager.stop(block=True, timeout=_STOP_TIMEOUT_S, hard_stop=True)
        self._manager.destroy()

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

    def fill_sampling(
        self,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        stop: tuple[str, ...] = (),
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
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Piece, None]:
        """Generate after `prompt_ids`, yielding text as it becomes certain.

        Closing the iterator cancels the request at once. Raises, before the first piece,
        `InvalidRequestError` for a prompt that fills the context and `OverloadedError` where
        there is no room to wait; at any time `DeadlineExceededError` and `EngineDeadError`.
        """
        num_new_tokens = self._limit_new_tokens(len(prompt_ids), sampling)
        self._check_room()
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        request_id = f"request-{next(self._request_numbers)}"
        # None stands for the deadline.
        outputs: asyncio.Queue[GenerationOutput | None] = asyncio.Queue()
        deadline = asyncio.get_running_loop().call_later(timeout_s, outputs.put_nowait, None)
        answer = _Answer(len(prompt_ids), self._eos_ids, self._tokenizer, sampling.stop)
        started = time.monotonic()
        is_running = True
        piece: Piece | None = None
        self._num_active += 1
        try:
            self._submit(request_id, prompt_ids, num_new_tokens, sampling, outputs)
            while not answer.is_finished:
                if piece is not None:
                    yield piece
                output = await outputs.get()
                if output is None:
                    raise DeadlineExceededError(f"no complete answer within {timeout_s:g} s")
                is_running = not output.is_finished()
                if output.error is not None:
                    logger.error("%s failed: %s", request_id, output.error)
                    raise EngineDeadError("the model's engine failed while it answered")
                piece = answer.read(output)
            self._mean_duration_s += 0.1 * (time.monotonic() - started - self._mean_duration_s)
        finally:
            self._num_active -= 1
            deadline.cancel()
            if is_running:
                self._cancel(request_id)
        assert piece is not None
        yield piece  # the last one, when its place in the batch is free again

    def _limit_new_tokens(self, num_prompt_tokens: int, sampling: Sampling) -> int:
        num_left = self.context_length - num_prompt_tokens
        if num_left < 1:
            raise InvalidRequestError(
                f"the prompt has {num_prompt_tokens} tokens, but the model's context holds "
                f"{self.context_length}, of which at least one is for the answer; shorten it",
                param="messages",
                code="context_length_exceeded",
            )
        return min(sampling.max_new_tokens or self._settings.default_max_new_tokens, num_left)

    def _check_room(self) -> None:
        # The manager's own queue limit does not help: its thread empties that queue at every step
        # into a list without a limit.
        settings = self._settings
        if self._num_active < settings.max_running_requests + settings.max_queued_requests:
            return
        rounds = self._num_active / settings.max_running_requests
        raise OverloadedError(
            f"{self._num_active} requests are running or waiting, the most that this model takes",
            retry_after_s=min(_MAX_RETRY_AFTER_S, math.ceil(rounds * self._mean_duration_s)),
        )

    def _submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        num_new_tokens: int,
        sampling: Sampling,
        outputs: "asyncio.Queue[GenerationOutput | None]",
    ) -> None:
        # What a request yielded between its cancellation and its end has no handler and lands in
        # the manager's common queue, which nobody else reads.
        while self._manager.get_result(timeout=0) is not None:
            pass
        self._manager.register_result_handler(request_id, outputs.put_nowait)
        accepted = self._manager.add_request(
            list(prompt_ids),
            request_id=request_id,
            max_new_tokens=num_new_tokens,
            streaming=True,
            eos_token_id=self._eos_ids or -1,
            **sampling.to_processor_kwargs(self._vocab_size),
        )
        # A thread that died between its last look at the queue and our put answers nobody.
        if accepted is None or not self.is_healthy():
            raise EngineDeadError("the model's engine has stopped")

    def _cancel(self, request_id: str) -> None:
        self._manager.cancel_request(request_id)
        self._manager.output_router.result_handlers.pop(request_id, None)


class _Answer:
    """Reads the tokens of one request into pieces of text, up to its end."""

    def __init__(
        self,
        num_prompt_tokens: int,
        eos_ids: Sequence[int],
        tokenizer: PreTrainedTokenizerBase,
        stops: Sequence[str],
    ) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._eos_ids = frozenset(eos_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self._cutter = StopCutter(stops)
        self._num_read = 0
        self.is_finished = False

    def read(self, output: GenerationOutput) -> Piece | None:
        """Return what the new tokens of `output` add, or None while that is no certain text."""
        text = ""
        reason: FinishReason | None = None
        # Every output holds all tokens so far.
        for token_id in output.generated_tokens[self._num_read :]:
            self._num_read += 1
            if token_id in self._eos_ids:
                reason = "stop"
                break
            text += self._cutter.push(self._detokenizer.push(token_id))
            if self._cutter.stopped:
                reason = "stop"
                break
        if reason is None and output.is_finished():
            reason = "length"
        if reason is None:
            return Piece(text) if text else None
        text += self._cutter.push(self._detokenizer.finish())
        reason = "stop" if self._cutter.stopped else reason
        self.is_finished = True
        return Piece(text + self._cutter.finish(), reason, self._num_prompt_tokens, self._num_read)


class _Scheduler(FIFOScheduler):  # type: ignore[misc]
    """First come, first served, without waiting for an end that never comes.

    When the cache is full, transformers admits nobody until a request has finished. One that is
    cancelled does not count as finished, so after the last of them it would wait for ever.
    """

    def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
        if not self.active_requests:
            self.block_new_requests = False
        return super().schedule_batch(token_budget, cache_budget)


def _start_manager(
    model: PreTrainedModel, settings: EngineSettings, vocab_size: int
) -> ContinuousBatchingManager:
    SCHEDULER_MAPPING[_SCHEDULER_NAME] = _Scheduler
    manager: ContinuousBatchingManager = model.init_continuous_batching(
        # Always sampling: a greedy request is one whose processors leave a single token.
        generation_config=GenerationConfig(
            do_sample=True, eos_token_id=-1, max_new_tokens=settings.default_max_new_tokens
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=settings.page_size,
            num_blocks=settings.num_cache_blocks,
            max_batch_tokens=settings.max_batch_tokens,
            max_requests_per_batch=settings.max_running_requests,
            scheduler_type=_SCHEDULER_NAME,
            per_request_processors=True,
        ),
    )
    manager.logit_processor = build_processors(vocab_size)
    manager.warmup()  # makes the cache here and now, so that its errors are ours to see
    manager.start()
    return manager


def _find_context_length(model: PreTrainedModel, manager: ContinuousBatchingManager) -> int:
    processor = manager.batch_processor
    assert processor is not None
    num_cache_tokens: int = processor.cache.num_blocks * processor.cb_config.page_size
    own: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(own or num_cache_tokens, num_cache_tokens)
