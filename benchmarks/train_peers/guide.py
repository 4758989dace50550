"""The loop of Ray's own guide, "Fine-tune an LLM with Ray Train and DeepSpeed".

    python -m benchmarks.train_peers.guide WORKBENCH bf16

https://docs.ray.io/en/latest/train/examples/pytorch/deepspeed_finetune/README.html, including its
constants and its DeepSpeed configuration. Differences: the rows, the model, one epoch instead of 30
steps, the common learning rate, CPUs. Omitted because they would slow it down: printing and reading
the loss of each step, the checkpoint at the end, and the dashboard.
"""

import argparse
import json
from pathlib import Path
from typing import Any

BATCH_SIZE = 1  # the guide's, per worker
SEQ_LENGTH = 512  # the guide's: every row is padded or cut to it
NUM_WORKERS = 2  # the guide's


def main() -> None:
    """Train for one epoch in a separate Ray cluster."""
    import ray
    import ray.train
    from ray.train.torch import TorchTrainer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workbench", type=Path, help="folder that benchmarks.train has built")
    parser.add_argument("precision", choices=["bf16", "fp32"], help="arithmetic")
    options = parser.parse_args()
    ray.init(address="local", include_dashboard=False, log_to_driver=False)  # as ours
    loop: Any = train_loop  # Ray's annotation does not allow a return value
    trainer = TorchTrainer(
        loop,
        train_loop_config={
            "workbench": str(options.workbench),
            "ds_config": make_deepspeed_config(options.precision),
        },
        scaling_config=ray.train.ScalingConfig(num_workers=NUM_WORKERS, use_gpu=False),
        run_config=ray.train.RunConfig(storage_path=str(options.workbench / "guide")),
    )
    result: Any = trainer.fit()
    ray.shutdown()
    print(json.dumps(result.return_value), flush=True)


def make_deepspeed_config(precision: str) -> dict[str, Any]:
    """Return the guide's configuration; for fp32 without its two entries for bf16."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": BATCH_SIZE,
        "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True},
        "gradient_clipping": 1.0,
    }
    if precision == "bf16":
        config |= {"bf16": {"enabled": True}, "grad_accum_dtype": "bf16"}
    return config


def train_loop(config: dict[str, Any]) -> dict[str, Any]:
    """Train as one of the workers; returns the report of its steps."""
    import deepspeed
    import ray.train.torch
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.train_peers.report import StepClock
    from benchmarks.workbench import LEARNING_RATE, Workbench

    torch.set_num_threads(1)
    bench = Workbench(Path(config["workbench"]))
    model = AutoModelForCausalLM.from_pretrained(bench.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config["ds_config"])
    loader = _make_loader(bench)
    device = ray.train.torch.get_device()
    engine.train()
    loader.sampler.set_epoch(0)

    clock, num_tokens = StepClock(), []
    for batch in loader:
        input_ids = batch["input_ids"].to(device)
        attention_mask = batch["attention_mask"].to(device)
        outputs = engine(
            input_ids=input_ids, attention_mask=attention_mask, labels=input_ids, use_cache=False
        )
        loss = outputs.loss
        engine.backward(loss)
        engine.step()
        clock.end_step()
        num_tokens.append(int(attention_mask.sum()))

    return clock.describe(num_tokens, float(loss), engine)


def _make_loader(bench: Any) -> Any:
    import ray.train.torch
    from datasets import load_dataset
    from torch.utils.data import DataLoader
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bench.model)

    def tokenize(examples: Any) -> Any:
        return tokenizer(
            examples["text"], padding="max_length", max_length=SEQ_LENGTH, truncation=True
        )

    dataset = load_dataset("json", data_files=str(bench.texts_file), split="train")
    tokenized = dataset.map(tokenize, batched=True, num_proc=1, keep_in_memory=True)
    tokenized.set_format(type="torch", columns=["input_ids", "attention_mask"])
    loader: Any = DataLoader(tokenized, batch_size=BATCH_SIZE, shuffle=True)
    return ray.train.torch.prepare_data_loader(loader)


if __name__ == "__main__":
    main()
