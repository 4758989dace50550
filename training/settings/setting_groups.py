"""The groups in which forms show the settings of a spec; each setting is in one of them."""

from collections.abc import Mapping
from typing import Any

SETTING_GROUPS: Mapping[str, tuple[str, ...]] = {
    "task": ("base_model", "task", "task_settings"),
    "data": (
        *("train_file", "train_files", "train_dataset", "max_rows", "format", "columns"),
        *("text_rows", "max_length", "overlong", "learned_turns", "reasoning"),
        *("template_arguments", "data_engine", "data_memory_mb", "shuffle_window"),
    ),
    "optimizer": (
        *("epochs", "max_steps", "learning_rate", "lr_schedule", "warmup_ratio", "warmup_steps"),
        *("weight_decay", "adam_betas", "adam_epsilon", "max_grad_norm", "seed"),
    ),
    "adapter": ("adapter", "base_adapter", "quantization"),
    "memory": (
        *("micro_batch_tokens", "micro_batch_size", "gradient_accumulation_steps"),
        *("batch_layout", "precision", "activation_checkpointing", "offload_optimizer"),
        "offload_parameters",
    ),
    "cluster": (
        *("num_workers", "min_workers", "accelerator", "cpus_per_worker", "threads_per_worker"),
        *("strategy", "zero_stage", "pipeline_stages", "pipeline_partition", "deepspeed"),
        *("max_failures", "wall_clock_breakdown"),
    ),
    "evaluation": (
        *("validation_file", "validation_dataset", "validation_fraction"),
        *("evaluate_every_steps", "early_stopping_patience", "best_metric", "best_direction"),
    ),
    "result": (*("save_every_steps", "keep_checkpoints", "keep", "export_dtype", "trackers"),),
    "loop": ("loop", "loop_config", "loop_split"),
}
"""The settings of each group, in the order in which a form shows them."""


def add_groups(schema: dict[str, Any]) -> None:
    """Add the `group` of each setting to the JSON schema of a spec, and order them by groups."""
    properties = schema["properties"]
    schema["properties"] = {
        name: {**properties[name], "group": group}
        for group, names in SETTING_GROUPS.items()
        for name in names
        if name in properties
    }
