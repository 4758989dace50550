"""Settings that DeepSpeed itself accepts; `test_user_config` tests our own rules."""

from typing import Any

import pytest

from training.deepspeed.validation import DeepSpeedSettingError, check_deepspeed_keys
from training.spec import TrainingSpec

MINIMAL = {"base_model": "m", "train_file": "rows.jsonl"}


def check(deepspeed: dict[str, Any], **changes: Any) -> None:
    values = {**MINIMAL, **changes, "deepspeed": deepspeed}
    check_deepspeed_keys(TrainingSpec.model_validate(values))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"gradient_cliping": 1.0}, "'deepspeed.gradient_cliping' is not a key .* 'gradient_clip"),
        ({"memory_breakdwon": True}, "'deepspeed.memory_breakdwon' is not .*'memory_breakdown'"),
        (
            {"activation_checkpointing": {"partition_activation": True}},
            "'deepspeed.activation_checkpointing.partition_activation' is not a key",
        ),
        (
            {"zero_optimization": {"reduce_buket_size": 1000}},
            "'deepspeed.zero_optimization.reduce_buket_size' is not a key that DeepSpeed knows",
        ),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memroy": True}}},
            "'deepspeed.zero_optimization.offload_optimizer.pin_memroy' is not a key",
        ),
        ({"tensorboard": {"enabled": False, "path": "x"}}, "'deepspeed.tensorboard.path' is not"),
        (
            {"zero_optimization": {"reduce_bucket_size": "many"}},
            "deepspeed.zero_optimization.reduce_bucket_size is 'many': DeepSpeed says",
        ),
        (
            {"nebula": {"enabled": True}},
            "deepspeed is refused by DeepSpeed: Nebula checkpointing has been removed",
        ),
    ],
)
def test_unknown_deepspeed_key_is_named(config: dict[str, Any], message: str) -> None:
    """Previously, it was ignored, or rejected by a worker after 42 s with a pydantic URL."""
    with pytest.raises(DeepSpeedSettingError, match=f"^{message}") as caught:
        check(config)
    assert "http" not in str(caught.value)


def test_all_unknown_keys_are_named_at_once() -> None:
    with pytest.raises(DeepSpeedSettingError, match=r"^'deepspeed.abc'.*; 'deepspeed.xyz'"):
        check({"abc": 1, "xyz": 2})


@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto"}},
        {
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
                "offload_param": {"device": "cpu", "buffer_count": 5},
                "sub_group_size": 1e9,
                "stage3_gather_16bit_weights_on_model_save": True,
            }
        },
        {"fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16}},
        {"bf16": {"enabled": "auto"}, "train_batch_size": "auto", "steps_per_print": 10},
        {"activation_checkpointing": {"partition_activations": True, "number_checkpoints": 4}},
        {"tensorboard": {"enabled": False, "output_path": "x", "job_name": "y"}},
        {"csv_monitor": {"enabled": False}, "wandb": {"enabled": False, "project": "p"}},
        {"flops_profiler": {"enabled": False, "profile_step": 1, "detailed": True}},
        {"comms_logger": {"enabled": False, "verbose": True}},
        {"aio": {"block_size": 1048576, "queue_depth": 8, "intra_op_parallelism": 1}},
        {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"},
        {"prescale_gradients": False, "gradient_predivide_factor": 1.0, "dump_state": False},
        {"memory_breakdown": False, "wall_clock_breakdown": False, "disable_allgather": False},
        {"checkpoint": {"tag_validation": "Warn", "use_node_local_storage": False}},
        {"compile": {"deepcompile": False}, "timers": {"throughput": {"enabled": True}}},
        {
            "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        },
    ],
)
def test_documented_deepspeed_keys_are_accepted(config: dict[str, Any]) -> None:
    """This also tests that our record of the keys that DeepSpeed reads is complete."""
    check(config)


def test_generated_keys_are_accepted_by_deepspeed() -> None:
    for changes in ({"zero_stage": stage} for stage in range(4)):
        check({"steps_per_print": 5}, **changes)
    check({"steps_per_print": 5}, offload_optimizer=True, offload_parameters=True)
