"""The DeepSpeed configuration of a spec, merged with the user's own DeepSpeed configuration."""

from collections.abc import Mapping
from typing import Any

from training.deepspeed.user_config import select_extras
from training.spec import TrainingSpec

# A parameter below this size stays gathered on every worker at stage 3.
_PERSISTENT_PARAMETER_ELEMENTS = 100_000
_REDUCE_BUCKET_ELEMENTS = 50_000_000
# Parameters are gathered ahead of their use up to DeepSpeed's default, but no more than a layer of
# a transformer has, 12 times the square of its width. Else a small model is gathered all at once,
# before its first layer computes.
_MAX_PREFETCHED_ELEMENTS = 50_000_000
_LAYER_SQUARES = 12


def build_deepspeed_config(
    spec: TrainingSpec,
    world_size: int,
    *,
    hidden_size: int,
    num_shares: int | None = None,
    load_universal: bool = False,
) -> dict[str, Any]:
    """Build the DeepSpeed configuration of a run over `world_size` workers.

    DeepSpeed counts each micro batch as 1, whatever its number of rows, so that its identity
    train_batch_size = micro batch × accumulation × workers holds; the token budget decides how many
    rows a micro batch has, and the loop weights the loss by learned tokens. `num_shares` is the
    number of workers that the batches were planned for, by default the spec's. A run that resumes
    with fewer workers accumulates more micro batches per worker, so that its steps stay the same.
    `hidden_size` of the model limits what is gathered ahead at stage 3, and fills in 'auto' values
    of the user's configuration, as Transformers does.
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
        "zero_optimization": _build_zero(spec, hidden_size),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # PyTorch's fused AdamW; see `optimizer`
        "wall_clock_breakdown": spec.wall_clock_breakdown,
        # Our metrics are more detailed than DeepSpeed's lines, but its breakdown needs these lines.
        "steps_per_print": 1 if spec.wall_clock_breakdown else 1_000_000_000,
    }
    if load_universal:
        config["checkpoint"] = {"load_universal": True}
    config = _merge_settings(config, select_extras(spec.deepspeed, hidden_size))
    if not spec.offload_optimizer:
        config["zero_optimization"].pop("offload_optimizer", None)
    if not spec.offload_parameters:
        config["zero_optimization"].pop("offload_param", None)
    return config


def _merge_settings(config: Mapping[str, Any], extras: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in extras.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = _merge_settings(below, value)
        else:
            merged[key] = value
    return merged


def _build_zero(spec: TrainingSpec, hidden_size: int) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": spec.zero_stage,
        "contiguous_gradients": True,
        "overlap_comm": False,
        "reduce_bucket_size": _REDUCE_BUCKET_ELEMENTS,
    }
    if spec.zero_stage == 3:
        of_layer = _LAYER_SQUARES * hidden_size**2
        zero["stage3_prefetch_bucket_size"] = min(of_layer, _MAX_PREFETCHED_ELEMENTS)
        zero["stage3_param_persistence_threshold"] = _PERSISTENT_PARAMETER_ELEMENTS
    if spec.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if spec.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero
