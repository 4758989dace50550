"""The spec in DeepSpeed's words."""

from typing import Any

from training.spec import TrainingSpec


def build_deepspeed_config(spec: TrainingSpec, world_size: int) -> dict[str, Any]:
    """Build the DeepSpeed configuration of a run over `world_size` workers.

    DeepSpeed counts a micro batch as one, whatever rows are in it, so that its identity
    train_batch_size = micro batch × accumulation × workers holds; how many rows a micro batch has
    is decided by the token budget, and the loss is weighted by learned tokens in the loop.
    """
    return {
        "train_batch_size": spec.gradient_accumulation_steps * world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": spec.gradient_accumulation_steps,
        "gradient_clipping": spec.max_grad_norm,
        "bf16": {"enabled": spec.precision == "bf16"},
        "zero_optimization": {
            "stage": 3,
            "contiguous_gradients": True,
            "overlap_comm": False,
            "reduce_bucket_size": 50_000_000,
            # A small model is kept gathered below this size; 0 shards every tensor.
            "stage3_param_persistence_threshold": 100_000,
        },
        "zero_allow_untested_optimizer": True,
        "wall_clock_breakdown": False,
        "steps_per_print": 1_000_000_000,  # our own metrics say more
    }
