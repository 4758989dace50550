"""Train a Llama model in pipeline stages with DeepSpeed, as a training function of Ray Train.

In plain Ray Train, with a JSONL file that has a `text` in each row:

    python examples/loops/llama_pipeline.py BASE_MODEL TEXTS.jsonl --storage FOLDER

In Tuneserve, with `loop_split: none` in the spec, since all stages need the same rows:

    python -m training --loop examples.loops.llama_pipeline:train_func SPEC.yaml --output FOLDER

The lines marked with "tuneserve" are for Tuneserve alone: they collect the layers of all stages and
save the model that it publishes.
"""

import argparse
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import deepspeed
import ray.data
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

IGNORED = -100


class Block(nn.Module):
    """A decoder layer, from hidden states to hidden states of shape `[rows, tokens, width]`."""

    def __init__(self, layer: nn.Module, rotary: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.rotary = rotary

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the layer with causal attention."""
        places = torch.arange(hidden.shape[1], device=hidden.device)[None]
        return self.layer(hidden, position_embeddings=self.rotary(hidden, places))


def train_func(config: dict[str, Any]) -> None:
    """Train this worker's stage; Ray Train calls this on every worker."""
    torch.manual_seed(config["seed"])
    deepspeed.init_distributed()
    tokenizer = AutoTokenizer.from_pretrained(config["base_model"])
    model = AutoModelForCausalLM.from_pretrained(config["base_model"], dtype=torch.float32)
    num_micro_batches, rows = config.get("num_micro_batches", 4), config.get("batch_size", 4)
    settings = {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": num_micro_batches,
        "zero_optimization": {"stage": 1},
    }
    stages = split_model(model, config.get("num_stages", 2))
    optimizer = torch.optim.AdamW(stages.parameters(), lr=config["learning_rate"])
    engine, *_ = deepspeed.initialize(model=stages, optimizer=optimizer, config=settings)
    texts = ray.train.get_dataset_shard("train")
    for epoch in range(find_epoch(engine), config["epochs"]):
        batches = encode(tokenizer, texts, rows, config.get("max_length", 64))
        losses = []
        while len(group := list(islice(batches, num_micro_batches))) == num_micro_batches:
            losses.append(float(engine.train_batch(data_iter=iter(group))))
        with tempfile.TemporaryDirectory() as folder:
            engine.save_checkpoint(folder, client_state={"epoch": epoch + 1})
            own = set(engine.module.parameters())  # tuneserve
            part = {n: p.data.clone() for n, p in model.named_parameters() if p in own}  # tuneserve
            dist.all_gather_object(parts := [None] * dist.get_world_size(), part)  # tuneserve
            model.load_state_dict({n: p for one in parts for n, p in one.items()})  # tuneserve
            model.save_pretrained(Path(folder) / "model")  # tuneserve
            ray.train.report(
                {"epoch": epoch, "loss": sum(losses) / len(losses)},
                checkpoint=ray.train.Checkpoint.from_directory(folder),
            )


def split_model(model: Any, num_stages: int) -> PipelineModule:
    """Cut a Llama model whose embedding and head are separate weights into stages."""
    if model.config.tie_word_embeddings:
        raise ValueError("the embedding and the head share their weights: choose another model")
    parts = model.model
    return PipelineModule(
        layers=[
            parts.embed_tokens,
            *(Block(layer, parts.rotary_emb) for layer in parts.layers),
            parts.norm,
            model.lm_head,
        ],
        num_stages=num_stages,
        loss_fn=compute_loss,
        partition_method="parameters",
    )


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of the next tokens; logits have the shape `[rows, tokens, vocabulary]`."""
    predicted = logits[:, :-1].flatten(0, 1).float()
    return cross_entropy(predicted, labels[:, 1:].flatten(), ignore_index=IGNORED)


def encode(
    tokenizer: Any, rows: Any, batch_size: int, max_length: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield micro batches of one size: tokens and labels of shape `[batch_size, max_length]`."""
    for batch in rows.iter_batches(batch_size=batch_size, drop_last=True):
        tokens = tokenizer(
            batch["text"].tolist(),
            truncation=True,
            padding="max_length",
            max_length=max_length,
            return_tensors="pt",
        )
        labels = tokens["input_ids"].masked_fill(tokens["attention_mask"] == 0, IGNORED)
        yield tokens["input_ids"], labels


def find_epoch(engine: Any) -> int:
    """Load the newest checkpoint, if there is one, and return the first epoch to train."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        _, state = engine.load_checkpoint(folder)
    return int(state["epoch"])


def main(arguments: list[str] | None = None) -> Any:
    """Run the function in plain Ray Train; returns Ray's result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base_model")
    parser.add_argument("train_file")
    parser.add_argument("--storage", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--num-stages", type=int, default=2)
    options = parser.parse_args(arguments)
    trainer = ray.train.torch.TorchTrainer(
        train_func,
        train_loop_config={
            "base_model": options.base_model,
            "epochs": options.epochs,
            "learning_rate": options.learning_rate,
            "num_stages": options.num_stages,
            "seed": 0,
        },
        scaling_config=ray.train.ScalingConfig(
            num_workers=options.num_stages,
            use_gpu=torch.cuda.is_available(),
            resources_per_worker={"CPU": 0.5},
        ),
        datasets={"train": ray.data.read_json(options.train_file)},
        dataset_config=ray.train.DataConfig(datasets_to_split=[]),
        run_config=ray.train.RunConfig(name="llama-pipeline", storage_path=options.storage),
    )
    return trainer.fit()


if __name__ == "__main__":
    print(main().metrics)
