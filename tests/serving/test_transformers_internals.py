"""The internals of transformers that serving relies on have not changed."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig
from transformers.generation.continuous_batching.requests import RequestState
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING

from serving.adapters.adapter_bank import AdapterBank
from serving.engine.continuous_batching import LikelihoodRecorder, start_manager
from serving.loading.loading import load_model
from serving.transformers_internals import (
    FULL_ATTENTION,
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
    ContinuousBatchingManager,
    FIFOScheduler,
    FutureRequestState,
    GenerationOutput,
    OutputRouter,
    PagedAttentionCache,
    accepts_requests,
    count_active_requests,
    count_cache_tokens,
    find_attention,
    find_cache_use,
    sdpa_attention_forward,
)


def list_parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.fixture(scope="module")
def manager(tiny_model: Path) -> Iterator[ContinuousBatchingManager]:
    model, _ = load_model(tiny_model)
    config = ContinuousBatchingConfig(
        page_size=32, num_blocks=8, max_batch_tokens=64, max_requests_per_batch=2
    )

    def ignore(_: Sequence[GenerationOutput]) -> None:
        pass

    vocab_size = int(model.config.vocab_size)
    bank = AdapterBank(model, page_size=32, max_rows=64)
    manager = start_manager(model, config, vocab_size, LikelihoodRecorder(), ignore, bank)
    yield manager
    manager.stop(block=True, timeout=30.0, hard_stop=True)
    manager.destroy()


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (OutputRouter.deliver, ["self", "output"]),
        (OutputRouter.deliver_batch, ["self", "outputs"]),
        (FIFOScheduler.schedule_batch, ["self", "token_budget", "cache_budget"]),
        (ContinuousBatchingLogitsProcessor.fill_defaults, ["self", "int32_tensor"]),
        (
            ContinuousBatchingLogitsProcessor.prepare_tensor_args,
            ["self", "requests_with_new_token"],
        ),
        (ContinuousBatchingLogitsProcessor.__call__, ["self", "scores", "tensor_arg"]),
        (ContinuousBatchingManager.cancel_request, ["self", "request_id"]),
        (ContinuousBatchingManager.pause, ["self"]),
    ],
)
def test_methods_have_expected_parameters(
    function: Callable[..., Any], parameters: list[str]
) -> None:
    assert list_parameters(function) == parameters


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (
            ContinuousBatchingManager.add_request,
            {"input_ids", "request_id", "max_new_tokens", "streaming", "eos_token_id"},
        ),
        (ContinuousBatchingManager.stop, {"block", "timeout", "hard_stop"}),
        (PagedAttentionCache.update, {"self"}),
        (sdpa_attention_forward, {"module", "query", "key", "value", "attention_mask"}),
    ],
)
def test_functions_accept_arguments_that_serving_passes(
    function: Callable[..., Any], parameters: set[str]
) -> None:
    assert parameters <= set(list_parameters(function))


def test_requests_have_fields_that_processors_read() -> None:
    assert {"request_id", "generated_tokens", "error"} <= {f.name for f in fields(GenerationOutput)}
    assert callable(GenerationOutput.is_finished)
    assert {
        "request_id",
        "initial_tokens",
        "generated_tokens",
        "logit_processor_kwargs",
    } <= {f.name for f in fields(RequestState)}
    assert "state" in list_parameters(FutureRequestState)


def test_running_manager_has_attributes_that_serving_reads(
    manager: ContinuousBatchingManager,
) -> None:
    assert accepts_requests(manager)
    assert count_active_requests(manager) == 0
    assert find_cache_use(manager) == 0
    assert count_cache_tokens(manager) == 8 * 32
    assert find_attention(manager.model) == "sdpa"
    processor = manager.batch_processor
    assert processor is not None
    assert isinstance(processor.scheduler, FIFOScheduler)
    assert processor.scheduler.block_new_requests is False
    assert isinstance(processor.inputs_and_outputs.output_ids, torch.Tensor)
    assert isinstance(processor.inputs_and_outputs.num_request_in_batch, int)
    assert isinstance(manager.logit_processor, ContinuousBatchingLogitsProcessorList)
    assert manager.continuous_batching_config.max_requests_per_batch == 2
    allocator = processor.cache.layer_to_allocator[0]
    assert allocator.layer_type == FULL_ATTENTION
    assert allocator.index == 0
    keys, values = allocator.get_cache_for_block_table(0)
    assert keys.shape == values.shape
    assert keys.shape[1] == 32, "the second dimension is not the page size"


def test_scheduler_mapping_contains_fifo() -> None:
    assert SCHEDULER_MAPPING["fifo"] is FIFOScheduler
