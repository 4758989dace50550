"""Fine-tune a vision transformer with DistributedDataParallel, as a training function of Ray Train.

In plain Ray Train, with Parquet files that have an encoded `image` and its `label` in each row:

    python examples/loops/vit_cifar.py BASE_MODEL TRAIN.parquet TEST.parquet --storage FOLDER

In Tuneserve, from the root of the repository:

    python -m training --loop examples.loops.vit_cifar:train_func SPEC.yaml --output FOLDER

The lines marked with "tuneserve" are for Tuneserve alone: they save the model that it publishes.
"""

import argparse
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray.data
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from PIL import Image
from torch.nn.functional import cross_entropy
from transformers import AutoModelForImageClassification

CIFAR_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
STATE = "state.pt"


def train_func(config: dict[str, Any]) -> None:
    """Train on this worker's rows; Ray Train calls this on every worker."""
    torch.manual_seed(config["seed"])
    classes = config.get("classes", CIFAR_CLASSES)
    model = AutoModelForImageClassification.from_pretrained(
        config["base_model"],
        num_labels=len(classes),
        id2label=dict(enumerate(classes)),
        label2id={name: number for number, name in enumerate(classes)},
        ignore_mismatched_sizes=True,
    )
    plain_model = model
    first_epoch, state = load_state()
    if state is not None:
        model.load_state_dict(state["model"])
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
    if state is not None:
        optimizer.load_state_dict(state["optimizer"])
    rank = ray.train.get_context().get_world_rank()
    train_rows = ray.train.get_dataset_shard("train")
    test_rows = ray.train.get_dataset_shard("validation")
    for epoch in range(first_epoch, config["epochs"]):
        loss = run_epoch(model, train_rows, config, optimizer)["loss"]
        metrics = run_epoch(model, test_rows, config)
        report = {"epoch": epoch, "loss": loss}
        report |= {"eval_loss": metrics["loss"], "accuracy": metrics["accuracy"]}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                saved = {"model": plain_model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**saved, "epoch": epoch + 1}, Path(folder) / STATE)
                plain_model.save_pretrained(Path(folder) / "model")  # tuneserve: to be published
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(report, checkpoint=checkpoint)


def load_state() -> tuple[int, dict[str, Any] | None]:
    """Return the first epoch to train, and the state in the newest checkpoint."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0, None
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / STATE, map_location="cpu")
    return state["epoch"], state


def run_epoch(
    model: Any, rows: Any, config: Mapping[str, Any], optimizer: Any = None
) -> dict[str, float]:
    """Train on all rows, or evaluate without an optimizer; returns means over all workers."""
    device = ray.train.torch.get_device()
    classes = list(config.get("classes", CIFAR_CLASSES))
    total = torch.zeros(3, device=device)  # sum of the losses, hits, rows
    model.train(optimizer is not None)
    for batch in rows.iter_batches(batch_size=config.get("batch_size", 32)):
        pixels = torch.stack([to_tensor(image) for image in batch["image"]]).to(device)
        labels = torch.tensor([classes.index(name) for name in batch["label"]], device=device)
        with torch.set_grad_enabled(optimizer is not None):
            logits = model(pixel_values=pixels).logits
            loss = cross_entropy(logits, labels)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        hits = (logits.argmax(-1) == labels).sum()
        total += torch.stack((loss.detach() * len(labels), hits, total.new_tensor(len(labels))))
    dist.all_reduce(total)
    return {"loss": float(total[0] / total[2]), "accuracy": float(total[1] / total[2])}


def to_tensor(encoded: bytes, size: int = 32) -> torch.Tensor:
    """Decode an image into numbers from -1 to 1, of shape `[3, size, size]`."""
    image = Image.open(io.BytesIO(encoded)).convert("RGB").resize((size, size))
    return torch.from_numpy(np.asarray(image, dtype=np.float32)).permute(2, 0, 1) / 127.5 - 1


def main(arguments: list[str] | None = None) -> Any:
    """Run the function in plain Ray Train; returns Ray's result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base_model")
    parser.add_argument("train_file")
    parser.add_argument("test_file")
    parser.add_argument("--storage", required=True)
    parser.add_argument("--classes", nargs="+", default=CIFAR_CLASSES)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args(arguments)
    trainer = ray.train.torch.TorchTrainer(
        train_func,
        train_loop_config={
            "base_model": options.base_model,
            "classes": options.classes,
            "epochs": options.epochs,
            "learning_rate": options.learning_rate,
            "seed": 0,
        },
        scaling_config=ray.train.ScalingConfig(
            num_workers=options.num_workers,
            use_gpu=torch.cuda.is_available(),
            resources_per_worker={"CPU": 0.5},
        ),
        datasets={
            "train": ray.data.read_parquet(options.train_file),
            "validation": ray.data.read_parquet(options.test_file),
        },
        run_config=ray.train.RunConfig(name="vit-cifar", storage_path=options.storage),
    )
    return trainer.fit()


if __name__ == "__main__":
    print(main().metrics)
