"""transformers' Trainer with PEFT's adapter over weights of 4 bits, on one GPU.

    python -m benchmarks.train_peers.quantized WORKBENCH --sized --recipe

It has the same templated and masked rows as ours, padded to the longest of a batch, the same layers
and rank, and the same settings of the optimizer. Logging, saving and the progress bar are off.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

if "--unsloth" in sys.argv:
    import unsloth  # type: ignore[import-not-found]  # changes transformers when it is imported

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from benchmarks.train_peers.report import NUM_WARMUP_STEPS, summarise_steps
from benchmarks.train_peers.trainer_parts import CountingCollator, list_common_arguments
from benchmarks.workbench import CONTEXT_LENGTH, Workbench
from training.adapters.layers import plan_adapter
from training.adapters.quantization import build_quantization
from training.spec import TrainingSpec


class GpuClock(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """A callback that records the end of each step, and waits for the GPU where time is read."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        """Record the end of an optimizer step; called by Trainer."""
        if torch.cuda.is_available() and state.global_step in (NUM_WARMUP_STEPS, state.max_steps):
            torch.cuda.synchronize()
        self.ends_s.append(time.perf_counter())


def main() -> None:
    """Train for one epoch and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workbench", type=Path, help="folder that benchmarks.quantized has built")
    parser.add_argument("--sized", action="store_true", help="batches of our size, by length")
    parser.add_argument("--recipe", action="store_true", help="PEFT's recipe for such weights")
    parser.add_argument("--unsloth", action="store_true", help="Unsloth's model")
    options = parser.parse_args()
    bench = Workbench(options.workbench)
    spec = bench.read_spec()
    torch.set_num_threads(spec.threads_per_worker)
    changes: dict[str, Any] = {}
    if options.sized:
        changes["train_sampling_strategy"] = "group_by_length"
        changes["per_device_train_batch_size"] = bench.count_rows_per_batch()
    if options.recipe:
        changes["gradient_checkpointing"] = True
        changes["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    model = _load_unsloth(bench, spec) if options.unsloth else _load(bench, spec, options.recipe)
    collator, clock = CountingCollator(AutoTokenizer.from_pretrained(bench.model)), GpuClock()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(bench.path / "trainer"),
            bf16=True,
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            **list_common_arguments(spec),
            **changes,
        ),
        train_dataset=load_dataset("json", data_files=str(bench.tokens_file), split="train"),
        data_collator=collator,
        callbacks=[clock],
    )
    output = trainer.train()
    num_steps = len(clock.ends_s)
    report = summarise_steps(clock.ends_s, collator.num_tokens[:num_steps])
    report["mean_loss"] = round(output.training_loss, 4)
    report["rows_per_batch"] = trainer.args.per_device_train_batch_size
    report["num_trained"] = sum(one.numel() for one in model.parameters() if one.requires_grad)
    if torch.cuda.is_available():
        report["peak_memory_mb"] = torch.cuda.max_memory_allocated() >> 20
    print(json.dumps(report), flush=True)


def _load(bench: Workbench, spec: TrainingSpec, is_recipe: bool) -> Any:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = AutoModelForCausalLM.from_pretrained(
        bench.model,
        dtype=torch.bfloat16,
        **build_quantization(spec.quantization, device, torch.bfloat16),
    )
    if is_recipe:
        model = prepare_model_for_kbit_training(model)
    return get_peft_model(model, _plan(model, spec))


def _load_unsloth(bench: Workbench, spec: TrainingSpec) -> Any:
    model, _ = unsloth.FastLanguageModel.from_pretrained(
        str(bench.model),
        max_seq_length=CONTEXT_LENGTH,
        dtype=torch.bfloat16,
        load_in_4bit=True,
        local_files_only=True,
    )
    planned = _plan(model, spec)
    return unsloth.FastLanguageModel.get_peft_model(
        model,
        r=planned.r,
        lora_alpha=planned.lora_alpha,
        lora_dropout=planned.lora_dropout,
        target_modules=sorted({name.rpartition(".")[2] for name in planned.target_modules}),
        use_gradient_checkpointing=False,
        random_state=spec.seed,
    )


def _plan(model: Any, spec: TrainingSpec) -> LoraConfig:
    assert spec.adapter is not None
    return plan_adapter(model, spec.adapter, has_new_head=False)


if __name__ == "__main__":
    main()
