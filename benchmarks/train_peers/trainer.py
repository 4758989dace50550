"""transformers' own Trainer over DeepSpeed, with its defaults.

    torchrun --nproc-per-node=2 -m benchmarks.train_peers.trainer WORKBENCH bf16 --grouped

It has the same templated and masked rows as ours, in its default batches of 8 per worker, padded to
the longest row, and the same DeepSpeed configuration and optimizer. Logging and the progress bar
are off, and so is saving; with an adapter, one checkpoint is written after the last step, which is
not timed.
`--grouped` makes it group rows by length; `--rows` sets the number of rows per batch and worker.
"""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import transformers.training_args
from accelerate import PartialState
from datasets import load_dataset
from peft import get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from benchmarks.train_peers.report import StepClock
from benchmarks.train_peers.trainer_parts import CountingCollator, list_common_arguments
from benchmarks.workbench import Workbench
from system.free_resources import measure_size
from training.adapters.layers import plan_adapter


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """A callback that records the end of each step."""

    def __init__(self) -> None:
        self.steps = StepClock()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the end of an optimizer step; called by Trainer."""
        self.steps.end_step()


def main() -> None:
    """Train for one epoch as one of the workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workbench", type=Path, help="folder that benchmarks.train has built")
    parser.add_argument("precision", choices=["bf16", "fp32"], help="arithmetic")
    parser.add_argument("--grouped", action="store_true", help="group rows by length")
    parser.add_argument("--rows", type=int, help="rows per batch and worker")
    options = parser.parse_args()
    bench = Workbench(options.workbench)
    torch.set_num_threads(1)
    changes: dict[str, Any] = {"bf16": options.precision == "bf16"}
    if bench.read_spec().adapter:
        changes["save_strategy"] = "epoch"
    if options.grouped:
        changes["train_sampling_strategy"] = "group_by_length"
    if options.rows:
        changes["per_device_train_batch_size"] = options.rows
    arguments = _make_arguments(bench, changes)
    collator, clock = CountingCollator(AutoTokenizer.from_pretrained(bench.model)), Clock()
    trainer = Trainer(
        model=_load_model(bench),
        args=arguments,
        train_dataset=load_dataset("json", data_files=str(bench.tokens_file), split="train"),
        data_collator=collator,
        callbacks=[clock],
    )
    output = trainer.train()
    report = clock.steps.describe(collator.num_tokens, output.training_loss, trainer.model_wrapped)
    report["is_autocast"] = trainer.accelerator.native_amp
    report["rows_per_batch"] = arguments.per_device_train_batch_size
    if checkpoints := list(Path(arguments.output_dir).glob("checkpoint-*")):
        report["checkpoint_mb"] = round(measure_size(checkpoints[0]) / 2**20, 2)
    if dist.get_rank() == 0:
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()


def _load_model(bench: Workbench) -> Any:
    """Load the model; with PEFT's adapter if our spec has one, of the same layers and rank."""
    model = AutoModelForCausalLM.from_pretrained(bench.model)
    if (settings := bench.read_spec().adapter) is None:
        return model
    planned = plan_adapter(model, settings, has_new_head=False)
    # By default, PEFT makes an adapter fp32 beside bf16 weights; ours has the dtype of the weights.
    return get_peft_model(model, planned, autocast_adapter_dtype=False)


def _make_arguments(bench: Workbench, changes: Mapping[str, Any]) -> Any:
    # On CPUs, Trainer does not detect DeepSpeed and the other workers. With `use_cpu=True` it
    # silently ignores DeepSpeed. Without it, Trainer assumes that it is the only process unless a
    # process group is configured, and rejects bf16 because there is no GPU.
    deepspeed.init_distributed("gloo")
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    PartialState(backend="gloo")
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    batch = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    return TrainingArguments(
        output_dir=str(bench.path / "trainer"),
        deepspeed={**bench.read_deepspeed_config(), **batch},
        accelerator_config={"use_configured_state": True},
        **list_common_arguments(bench.read_spec()),
        **{"save_strategy": "no", **changes},
    )


if __name__ == "__main__":
    main()
