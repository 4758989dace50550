"""The report of a training loop on its steps: durations and token counts."""

import math
import resource
import time
from collections.abc import Sequence
from typing import Any

NUM_WARMUP_STEPS = 3


class StepClock:
    """A record of the end times of this process's steps."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []
        self._peak_kib = 0  # ru_maxrss is in KiB on Linux

    def end_step(self) -> None:
        """Record the end of an optimizer step, and the peak memory until then."""
        self._ends_s.append(time.perf_counter())
        self._peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def describe(self, num_tokens: Sequence[int], loss: float, engine: Any) -> dict[str, Any]:
        """Summarise the steps over all workers; a collective call after the last step.

        `num_tokens` are this worker's tokens without padding in each step. Raises `AssertionError`
        if `engine` is not DeepSpeed's engine at ZeRO stage 3.
        """
        import torch
        import torch.distributed as dist

        tokens = torch.tensor(num_tokens, dtype=torch.int64)
        dist.all_reduce(tokens)
        peak = torch.tensor(self._peak_kib)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        assert math.isfinite(loss), f"the loss is {loss}"
        return {
            **summarise_steps(self._ends_s, tokens.tolist()),
            "last_loss": round(loss, 4),
            "peak_memory_mb": int(peak) // 1024,
            **_describe_engine(engine),
        }


def summarise_steps(ends_s: Sequence[float], num_tokens: Sequence[int]) -> dict[str, Any]:
    """Summarise the steps from the end of the warm-up to the end of the last.

    Both have the shape `[num_steps]`: the end of each step in seconds on any clock, and its tokens
    without padding over all workers. Raises `ValueError` if there are no steps after the warm-up.
    """
    assert len(ends_s) == len(num_tokens), f"{len(ends_s)} steps, {len(num_tokens)} batches"
    if len(ends_s) <= NUM_WARMUP_STEPS:
        raise ValueError(
            f"{len(ends_s)} steps are not more than the {NUM_WARMUP_STEPS} of the warm-up: take "
            "more rows"
        )
    timed_s = ends_s[-1] - ends_s[NUM_WARMUP_STEPS - 1]
    timed_tokens = sum(num_tokens[NUM_WARMUP_STEPS:])
    return {
        "tokens_per_s": round(timed_tokens / timed_s, 1),
        "timed_tokens": timed_tokens,
        "timed_s": round(timed_s, 3),
        "num_steps": len(ends_s),
    }


def _describe_engine(engine: Any) -> dict[str, Any]:
    import deepspeed
    import torch
    import torch.distributed as dist

    assert isinstance(engine, deepspeed.DeepSpeedEngine), type(engine)
    assert engine.zero_optimization_stage() == 3, engine.zero_optimization_stage()
    assert all(hasattr(parameter, "ds_shape") for parameter in engine.module.parameters())
    dtype = torch.bfloat16 if engine.bfloat16_enabled() else torch.float32
    assert {parameter.dtype for parameter in engine.module.parameters()} == {dtype}
    return {
        "engine": type(engine).__name__,
        "zero_stage": engine.zero_optimization_stage(),
        "is_bf16": engine.bfloat16_enabled(),
        "world_size": dist.get_world_size(),
    }
