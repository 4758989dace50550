"""The spec in DeepSpeed's words, and a configuration of the user's own laid over it."""

from collections.abc import Mapping
from typing import Any

from training.deepspeed_settings import select_extras
from training.spec import TrainingSpec

# A parameter below this size stays gathered on every worker at stage 3.
_PERSISTENT_PARAMETER_ELEMENTS = 100_000
_REDUCE_BUCKET_ELEMENTS = 50_000_000


def build_deepspeed_config(
    spec: TrainingSpec,
    world_size: int,
    *,
    hidden_size: int,
    num_shares: int | None = None,
    load_universal: bool = False,
) -> dict[str, Any]:
    """Build the DeepSpeed configuration of a run over `world_size` workers.

    DeepSpeed counts a micro batch as one, whatever rows are in it, so that its identity
    train_batch_size = micro batch × accumulation × workers holds; how many rows a micro batch has
    is decided by the token budget, and the loss is weighted by learned tokens in the loop. A run
    that goes on with fewer workers than `num_shares`, for which its batches were planned,
    accumulates more, to the same step; by default they are the spec's. `hidden_size` of the model
    fills in what is 'auto' in the spec's own configuration, as Transformers does.
    """
    num_micro_batches = (num_shares or spec.num_workers) * spec.gradient_accumulation_steps
    accumulation = -(-num_micro_batches // world_size)
    config: dict[str, Any] = {
        "train_batch_size": accumulation * world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": spec.max_grad_norm,
        "bf16": {"enabled": spec.precision == "bf16"},
        "fp16": {"enabled": spec.precision == "fp16"},
        "zero_optimization": _build_zero(spec),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # PyTorch's fused AdamW; see training/optimizer.py
        "wall_clock_breakdown": spec.wall_clock_breakdown,
        # Our own metrics say more than DeepSpeed's lines, but its breakdown comes with them.
        "steps_per_print": 1 if spec.wall_clock_breakdown else 1_000_000_000,
    }
    if load_universal:
        config["checkpoint"] = {"load_universal": True}
    config = _lay_over(config, select_extras(spec.deepspeed, hidden_size))
    if not spec.offload_optimizer:
        config["zero_optimization"].pop("offload_optimizer", None)
    if not spec.offload_parameters:
        config["zero_optimization"].pop("offload_param", None)
    return config


def _lay_over(config: Mapping[str, Any], extras: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in extras.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = _lay_over(below, value)
        else:
            merged[key] = value
    return merged


def _build_zero(spec: TrainingSpec) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": spec.zero_stage,
        "contiguous_gradients": True,
        "overlap_comm": False,
        "reduce_bucket_size": _REDUCE_BUCKET_ELEMENTS,
    }
    if spec.zero_stage == 3:
        zero["stage3_param_persistence_threshold"] = _PERSISTENT_PARAMETER_ELEMENTS
    if spec.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if spec.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero
