"""Continuous batching of transformers, set up for serving: one thread serves all requests."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from serving.adapters.adapter_bank import AdapterBank
from serving.cpu.paged_attention import use_attention_by_request
from serving.engine.logits_processors import build_processors
from serving.engine.messages import Likelihood
from serving.transformers_internals import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingManager,
    CudaGraphSets,
    FIFOScheduler,
    FutureRequestState,
    GenerationOutput,
    OutputRouter,
    call_before_pass,
    call_before_update,
    register_scheduler,
    salt_shared_pages,
)

UNLIKELY = -9999.0
"""Replacement for minus infinity, as in OpenAI's responses."""
_SCHEDULER_NAME = "tuneserve_fifo"

Deliver = Callable[[Sequence[GenerationOutput]], None]


class LikelihoodRecorder:
    """Records the log-probabilities of generated tokens for the requests that ask for them.

    They are computed from the raw logits, before temperature and other processors.
    """

    def __init__(self) -> None:
        self._recorded: dict[str, list[Likelihood]] = {}
        self._rows: list[tuple[str, int]] = []  # (request id, num_top) of the current batch
        self._logits: torch.Tensor | None = None  # [at least B, V] of the current batch
        self._buffer: torch.Tensor | None = None

    def reserve(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        """Allocate a persistent buffer for logits that CUDA graphs can write to."""
        self._buffer = torch.empty(num_rows, vocab_size, dtype=torch.float32, device=device)

    def start(self, request_id: str) -> None:
        """Start to record a request."""
        self._recorded[request_id] = []

    def read(self, request_id: str) -> Sequence[Likelihood]:
        """Return the likelihoods of a request, one per token generated so far."""
        return self._recorded.get(request_id, ())

    def discard(self, request_id: str) -> None:
        """Delete the record of a request."""
        self._recorded.pop(request_id, None)

    def set_rows(self, rows: list[tuple[str, int]]) -> None:
        """Set the request id and `num_top` of each row of the next batch."""
        self._rows = rows

    def capture(self, logits: torch.Tensor) -> None:
        """Store the logits of a batch, `[B, V]`; runs inside the CUDA graph where there is one."""
        if self._buffer is None:
            self._logits = logits
            return
        num_rows = min(len(logits), len(self._buffer))  # further rows are padding
        self._buffer[:num_rows].copy_(logits[:num_rows])
        self._logits = self._buffer

    def record(self, tokens: torch.Tensor) -> None:
        """Record the chosen tokens, `[B]`, before they are delivered to their requests."""
        indices = [index for index, (name, _) in enumerate(self._rows) if name in self._recorded]
        if not indices or self._logits is None:
            return
        likelihoods = find_likelihoods(
            self._logits[indices], tokens[indices], max(self._rows[index][1] for index in indices)
        )
        for index, likelihood in zip(indices, likelihoods, strict=True):
            name, num_top = self._rows[index]
            if (recorded := self._recorded.get(name)) is not None:
                recorded.append(Likelihood(likelihood.logprob, likelihood.top[:num_top]))


def find_likelihoods(
    logits: torch.Tensor,  # [N, V]
    tokens: torch.Tensor,  # [N]
    num_top: int,
) -> list[Likelihood]:
    """Return the log-probability of each token and the `num_top` likeliest at its position."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)  # [N, V]
    # JSON has no infinities or NaN; models with masked tokens or broken weights produce them.
    logprobs = logprobs.nan_to_num(nan=UNLIKELY, neginf=UNLIKELY)
    chosen = logprobs.gather(-1, tokens.long().unsqueeze(-1)).squeeze(-1).tolist()
    top = logprobs.topk(min(num_top, logprobs.size(-1)), dim=-1)
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [
        Likelihood(logprob, tuple(zip(ids, values, strict=True)))
        for logprob, (ids, values) in zip(chosen, pairs, strict=True)
    ]


def start_manager(
    model: PreTrainedModel,
    config: ContinuousBatchingConfig,
    vocab_size: int,
    recorder: LikelihoodRecorder,
    deliver: Deliver,
    adapters: AdapterBank,
) -> ContinuousBatchingManager:
    """Start the generating thread; block until the cache and the CUDA graphs are ready.

    The thread calls `deliver` once per step with the outputs of all requests. Raises `MemoryError`,
    `ValueError` or `RuntimeError` if the cache cannot be allocated.
    """
    use_attention_by_request()
    register_scheduler(_SCHEDULER_NAME, _Scheduler)
    config.scheduler_type = _SCHEDULER_NAME
    config.per_request_processors = True
    # Likelihoods are recorded between two steps; with two steps in flight they would mix.
    config.use_async_batching = False
    manager: ContinuousBatchingManager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1),
        continuous_batching_config=config,
    )
    manager.output_router = _Router(deliver)
    manager.logit_processor = build_processors(vocab_size, first=_LogitsCapture(recorder))
    if model.device.type == "cuda":
        num_rows = manager.continuous_batching_config.max_requests_per_batch
        recorder.reserve(num_rows, vocab_size, model.device)
    manager.warmup()  # allocates the cache in this thread, so that its errors are raised here
    call_before_update(manager, recorder.record)
    graphs = CudaGraphSets(manager, captures_others=config.use_cuda_graph is True)
    call_before_pass(manager, lambda requests: graphs.select(adapters.set_batch(requests)))
    salt_shared_pages(manager, adapters.salt)
    manager.start()
    return manager


class _Router(OutputRouter):  # type: ignore[misc]
    """Passes outputs to `deliver` directly, in the generating thread, without an event loop."""

    def __init__(self, deliver: Deliver) -> None:
        super().__init__()
        self._deliver = deliver

    def deliver(self, output: GenerationOutput) -> None:
        self._deliver([output])

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        self._deliver(outputs)


class _LogitsCapture(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Passes the logits to the `LikelihoodRecorder` before any other processor changes them."""

    supported_kwargs = {"num_top_logprobs": int}  # noqa: RUF012 - declared so by transformers
    ignored_kwargs = ()

    def __init__(self, recorder: LikelihoodRecorder) -> None:
        self._recorder = recorder

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.fill_(0)

    def prepare_tensor_args(
        self, requests_with_new_token: list[FutureRequestState]
    ) -> torch.Tensor:
        rows = [
            (
                request.state.request_id,
                request.state.logit_processor_kwargs.get("num_top_logprobs", 0),
            )
            for request in requests_with_new_token
        ]
        self._recorder.set_rows(rows)
        return torch.zeros(len(rows), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        self._recorder.capture(scores)
        return scores


class _Scheduler(FIFOScheduler):  # type: ignore[misc]
    """A FIFO scheduler that resumes admission after all active requests were cancelled.

    When the cache is full, transformers admits no request until one has finished. A cancelled
    request does not count as finished, so it would never admit again once all were cancelled.
    """

    def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
        if not self.active_requests:
            self.block_new_requests = False
        return super().schedule_batch(token_budget, cache_budget)
