"""The internals of transformers that serving relies on.

transformers documents continuous batching as one method of a model; serving needs its parts.
`tests/serving/test_transformers_internals.py` fails when one of them changes.

`ContinuousBatchingManager`       one thread that generates for all requests; serving replaces its
                                  `output_router` and `logit_processor` before it starts
`OutputRouter`                    receives the outputs of each step in the generating thread
`ContinuousBatchingLogitsProcessor` and its subclasses, `ContinuousBatchingLogitsProcessorList`
                                  processors whose settings differ between the requests of a batch
`FutureRequestState`              a request in the next batch, as processors see it
`FIFOScheduler`, `SCHEDULER_MAPPING`
                                  the scheduler that serving extends, and the names to select one by
`GenerationOutput`                the tokens of a request so far, and its end
`PagedAttentionCache`, `FULL_ATTENTION`
                                  keys and values of all requests, which attention on a CPU reads
`prepare_batch_tensors`           is called before each pass with its requests, in the order of rows
`search_prefix_match`, `mark_complete_blocks`
                                  find and register pages of the cache by their tokens
`inputs_and_outputs.graphs`       the CUDA graphs that passes were captured in, by their sizes
`use_cuda_graph_varlen`, `use_cuda_graph_decode`
                                  whether passes are captured
`sdpa_attention_forward`          the attention that serving computes separately for each request
`config._attn_implementation`     the name of the attention that a model uses
"""

from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessorList, PreTrainedModel
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators import FULL_ATTENTION
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
    ContinuousBatchingTemperatureLogitsWarper,
    ContinuousBatchingTopKLogitsWarper,
    ContinuousBatchingTopPLogitsWarper,
)
from transformers.generation.continuous_batching.continuous_api import OutputRouter
from transformers.generation.continuous_batching.requests import (
    FutureRequestState,
    GenerationOutput,
)
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING, FIFOScheduler
from transformers.generation.continuous_batching.utils import CudaGraphBuffer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

__all__ = [
    "FULL_ATTENTION",
    "ContinuousBatchingLogitsProcessor",
    "ContinuousBatchingLogitsProcessorList",
    "ContinuousBatchingManager",
    "ContinuousBatchingTemperatureLogitsWarper",
    "ContinuousBatchingTopKLogitsWarper",
    "ContinuousBatchingTopPLogitsWarper",
    "FIFOScheduler",
    "FutureRequestState",
    "GenerationOutput",
    "OutputRouter",
    "PagedAttentionCache",
    "accepts_requests",
    "call_before_pass",
    "call_before_update",
    "count_active_requests",
    "count_cache_tokens",
    "count_request_tokens",
    "find_attention",
    "find_cache_use",
    "list_processors",
    "register_scheduler",
    "salt_shared_pages",
    "sdpa_attention_forward",
]


def register_scheduler(name: str, scheduler: type[FIFOScheduler]) -> None:
    """Make a scheduler available under a name for `scheduler_type`."""
    SCHEDULER_MAPPING[name] = scheduler


def list_processors(
    processors: list[ContinuousBatchingLogitsProcessor],
) -> ContinuousBatchingLogitsProcessorList:
    """Combine processors that transformers would not build itself."""
    combined = ContinuousBatchingLogitsProcessorList(LogitsProcessorList(processors))
    combined.tensors_required = len(processors)
    return combined


def call_before_update(
    manager: ContinuousBatchingManager, handle_tokens: Callable[[torch.Tensor], None]
) -> None:
    """Call a function with the chosen tokens, `[B]`, before each batch is delivered.

    Call it after `warmup` of the manager, and before `start`.
    """
    processor: Any = manager.batch_processor
    update = processor.update_batch

    def handle_and_update() -> None:
        outputs = processor.inputs_and_outputs
        handle_tokens(outputs.output_ids[0, : outputs.num_request_in_batch])
        update()

    processor.update_batch = handle_and_update


def call_before_pass(
    manager: ContinuousBatchingManager, handle_requests: Callable[[list[tuple[str, int]]], None]
) -> None:
    """Call a function with the id and the number of tokens of each request before each pass.

    The requests are in the order of their tokens. Call it after `warmup` of the manager, and before
    `start`.
    """
    inputs: Any = manager.batch_processor.inputs_and_outputs
    prepare = inputs.prepare_batch_tensors

    def handle_and_prepare(requests_in_batch: list[FutureRequestState], **settings: Any) -> None:
        handle_requests([(one.state.request_id, one.query_length) for one in requests_in_batch])
        prepare(requests_in_batch=requests_in_batch, **settings)

    inputs.prepare_batch_tensors = handle_and_prepare


class CudaGraphSets:
    """CUDA graphs of passes that read different tensors, though their inputs have equal sizes.

    The graphs of the model itself are kept; beside them, those of one other version, if passes of
    other versions are captured. Create it after `warmup` of the manager, which captures the former,
    and before `start`.
    """

    def __init__(self, manager: ContinuousBatchingManager, *, captures_others: bool) -> None:
        self._inputs: Any = manager.batch_processor.inputs_and_outputs
        self._runner: Any = manager.batch_processor.model_runner
        self._captures = (self._runner.use_cuda_graph_varlen, self._runner.use_cuda_graph_decode)
        self._captures_others = captures_others
        self._own = self._inputs.graphs
        self._others = CudaGraphBuffer()
        self._version: int | None = None

    def select(self, version: int | None) -> None:
        """Select the graphs of a version for the next pass; None is the model itself."""
        captures = self._captures if version is None or self._captures_others else (False, False)
        self._runner.use_cuda_graph_varlen, self._runner.use_cuda_graph_decode = captures
        if version is None:
            self._inputs.graphs = self._own
            return
        if version != self._version:
            self._version, self._others = version, CudaGraphBuffer()
        self._inputs.graphs = self._others


def salt_shared_pages(
    manager: ContinuousBatchingManager, salt: Callable[[str, list[int]], list[int]]
) -> None:
    """Look pages of the cache up by `salt(request id, token ids)` instead of the token ids.

    Requests share the pages of a common prefix, which are found by hashes of the ids. Call it after
    `warmup` of the manager, and before `start`.
    """
    cache: Any = manager.batch_processor.cache
    search = cache.search_prefix_match
    cache.search_prefix_match = lambda request_id, ids: search(request_id, salt(request_id, ids))
    for allocator in cache.cache_allocators.values():
        allocator.mark_complete_blocks = _salt_marking(allocator.mark_complete_blocks, salt)


def _salt_marking(
    mark: Callable[[str, list[int], int], None], salt: Callable[[str, list[int]], list[int]]
) -> Callable[[str, list[int], int], None]:
    return lambda request_id, ids, num_new: mark(request_id, salt(request_id, ids), num_new)


def accepts_requests(manager: ContinuousBatchingManager) -> bool:
    """Return whether the generating thread is alive and accepts requests."""
    status = manager.background_thread_status
    return manager.is_running() and status.can_accept_new_requests() is None


def count_active_requests(manager: ContinuousBatchingManager) -> int:
    """Return the number of requests in the batch; 0 after the manager has stopped."""
    processor = manager.batch_processor
    return 0 if processor is None else len(processor.scheduler.active_requests)


def find_cache_use(manager: ContinuousBatchingManager) -> float:
    """Return the fraction of the cache that is in use; 0 after the manager has stopped."""
    processor = manager.batch_processor
    return 0.0 if processor is None else 1 - float(processor.cache.compute_free_capacity())


def count_cache_tokens(manager: ContinuousBatchingManager) -> int:
    """Return how many tokens the cache holds."""
    processor = manager.batch_processor
    assert processor is not None
    num_tokens: int = processor.cache.num_blocks * processor.cb_config.page_size
    return num_tokens


def count_request_tokens(state: Any) -> int:
    """Return the number of tokens of a request, of its prompt and generated, so far.

    A request that was evicted from the cache resumes with its generated tokens in its prompt.
    """
    return len(state.initial_tokens) + len(state.generated_tokens)


def find_attention(model: PreTrainedModel) -> str:
    """Return the name of the attention that a model uses, such as `paged|eager`."""
    name: str = model.config._attn_implementation
    return name
