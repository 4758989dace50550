"""Fine-tune BERT on pairs of sentences with DeepSpeed, as a training function of Ray Train.

In plain Ray Train, with the files of MRPC (GLUE) or tables with the same columns:

    python examples/loops/bert_mrpc.py BASE_MODEL TRAIN.tsv TEST.tsv --storage FOLDER

In Tuneserve, with examples/loops/bert_mrpc.yaml, from the root of the repository:

    python -m training --loop examples.loops.bert_mrpc:train_func SPEC.yaml --output FOLDER

Tuneserve consolidates DeepSpeed's checkpoint itself. The line marked with "tuneserve" is for it
alone: it passes the names of the classes on.
"""

import argparse
import tempfile
from collections.abc import Mapping
from typing import Any

import deepspeed
import ray.data
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from torchmetrics.classification import BinaryAccuracy, BinaryF1Score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

FIRST, SECOND, LABEL = "#1 String", "#2 String", "Quality"
LABELS = {0: "different", 1: "equivalent"}
BATCH_SIZE = 16


def train_func(config: dict[str, Any]) -> None:
    """Train on this worker's rows; Ray Train calls this on every worker."""
    torch.manual_seed(config["seed"])
    tokenizer = AutoTokenizer.from_pretrained(config["base_model"])
    model = AutoModelForSequenceClassification.from_pretrained(
        config["base_model"], num_labels=len(LABELS), id2label=LABELS
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
    batch_size = config.get("batch_size", BATCH_SIZE)
    settings = {
        "train_micro_batch_size_per_gpu": batch_size,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": config.get("zero_stage", 3)},
        "bf16": {"enabled": torch.cuda.is_available()},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    train_rows = ray.train.get_dataset_shard("train")
    test_rows = ray.train.get_dataset_shard("validation")
    for epoch in range(find_epoch(engine), config["epochs"]):
        loss = train_epoch(engine, tokenizer, train_rows.iter_batches(batch_size=batch_size))
        metrics = evaluate(engine, tokenizer, test_rows.iter_batches(batch_size=batch_size))
        with tempfile.TemporaryDirectory() as folder:
            engine.save_checkpoint(folder, client_state={"epoch": epoch + 1})
            model.config.save_pretrained(folder)  # tuneserve: the names of the classes
            ray.train.report(
                {"epoch": epoch, "loss": loss, **metrics},
                checkpoint=ray.train.Checkpoint.from_directory(folder),
            )


def find_epoch(engine: Any) -> int:
    """Load the newest checkpoint, if there is one, and return the first epoch to train."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        _, state = engine.load_checkpoint(folder)
    return int(state["epoch"])


def encode(tokenizer: Any, batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the tensors of a batch of rows, and their labels."""
    pairs = (batch[FIRST].tolist(), batch[SECOND].tolist())
    tokens = tokenizer(*pairs, truncation=True, padding=True, return_tensors="pt")
    labels = torch.tensor([int(label) for label in batch[LABEL]])
    return {name: tensor.to(device) for name, tensor in {**tokens, "labels": labels}.items()}


def train_epoch(engine: Any, tokenizer: Any, batches: Any) -> float:
    """Take a step for each batch; returns the mean loss over all workers."""
    engine.train()
    total = torch.zeros(2, device=engine.device)  # sum of the losses, number of steps
    for batch in batches:
        loss = engine(**encode(tokenizer, batch, engine.device)).loss
        engine.backward(loss)
        engine.step()
        total += torch.stack((loss.detach().float(), torch.ones_like(total[1])))
    dist.all_reduce(total)
    return float(total[0] / total[1])


@torch.no_grad()
def evaluate(engine: Any, tokenizer: Any, batches: Any) -> dict[str, float]:
    """Return the metrics of GLUE, over the rows of all workers."""
    engine.eval()
    metrics = {"accuracy": BinaryAccuracy(), "f1": BinaryF1Score()}
    for metric in metrics.values():
        metric.to(engine.device)
    for batch in batches:
        inputs = encode(tokenizer, batch, engine.device)
        labels = inputs.pop("labels")
        predicted = engine(**inputs).logits.argmax(-1)
        for metric in metrics.values():
            metric.update(predicted, labels)
    return {name: float(metric.compute()) for name, metric in metrics.items()}


def main(arguments: list[str] | None = None) -> Any:
    """Run the function in plain Ray Train; returns Ray's result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base_model")
    parser.add_argument("train_file")
    parser.add_argument("test_file")
    parser.add_argument("--storage", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args(arguments)
    trainer = ray.train.torch.TorchTrainer(
        train_func,
        train_loop_config={
            "base_model": options.base_model,
            "epochs": options.epochs,
            "learning_rate": options.learning_rate,
            "seed": 0,
        },
        scaling_config=ray.train.ScalingConfig(
            num_workers=options.num_workers,
            use_gpu=torch.cuda.is_available(),
            resources_per_worker={"CPU": 0.5},
        ),
        datasets={"train": read(options.train_file), "validation": read(options.test_file)},
        run_config=ray.train.RunConfig(name="bert-mrpc", storage_path=options.storage),
    )
    return trainer.fit()


def read(path: str) -> ray.data.Dataset:
    """Read a table of pairs as GLUE has them: separated by tabs, without quoting."""
    from pyarrow import csv

    return ray.data.read_csv(
        path,
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
        file_extensions=None,
    )


if __name__ == "__main__":
    print(main().metrics)
