"""transformers' Trainer on the steps of a classification run of ours.

    python -m benchmarks.train_peers.classifier BENCH

One process; a batch is all rows of one of our steps. The optimizer and the learning rate of each
step are ours, so that only the training loop differs.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from training.batching import BatchPlan, plan_epoch
from training.data.labelled.texts import LABELLED_LAYOUT
from training.data.prepare import prepare_data
from training.data.row_table import RowTable
from training.deepspeed.optimizer import build_optimizer, learning_rate_at
from training.losses.classification import Classes, LabelEncoder, collate_labelled
from training.spec import TrainingSpec, load_spec


class Steps:
    """Our steps as batches, epoch after epoch."""

    def __init__(self, spec: TrainingSpec, rows: RowTable) -> None:
        self._rows = rows
        plan = BatchPlan.from_spec(spec, "padded", spec.num_workers)
        self.epochs = [plan_epoch(rows.lengths, plan, epoch) for epoch in range(spec.epochs)]
        self._encoder = LabelEncoder(Classes("single_label_classification", ("0", "1")))
        self._epoch = 0

    def __len__(self) -> int:
        return len(self.epochs[0])

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        epoch = self.epochs[self._epoch]
        self._epoch += 1
        for step in epoch:
            rows = self._rows.read(step.rows)
            labels = self._encoder.encode([row.labels for row in rows])
            batch = collate_labelled(rows, labels, pad_token_id=0)
            yield {**batch.inputs, "labels": batch.labels}


class LossTrainer(Trainer):  # type: ignore[misc]  # transformers is not typed
    """Trainer with our batches, which keeps the loss of every step."""

    steps: Steps
    losses: list[float]

    def get_train_dataloader(self) -> Any:
        """Return our steps."""
        return self.steps

    def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """Take a step and keep its loss."""
        loss: torch.Tensor = super().training_step(*arguments, **named)
        self.losses.append(float(loss))
        return loss


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Measures the time of all steps."""

    began = took_s = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock; called by Trainer."""
        self.began = time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Stop the clock; called by Trainer."""
        self.took_s = time.perf_counter() - self.began


def main() -> int:
    """Train, save the model, and print the losses."""
    bench = Path(sys.argv[1])
    torch.set_num_threads(2)
    spec = load_spec(bench / "zero.yaml")
    rows = RowTable(prepare_data(spec, bench / "cache").train, LABELLED_LAYOUT)
    steps = Steps(spec, rows)
    num_steps = sum(map(len, steps.epochs))
    model: Any = AutoModelForSequenceClassification.from_pretrained(bench / "model")
    optimizer = build_optimizer(model, spec)
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_at(min(step, num_steps - 1), num_steps, spec)
    )
    clock = Clock()
    trainer = LossTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(bench / "trainer-output"),
            num_train_epochs=spec.epochs,
            max_grad_norm=spec.max_grad_norm,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=[None] * len(rows),
        optimizers=(optimizer, schedule),
        callbacks=[clock],
    )
    trainer.steps, trainer.losses = steps, []
    trainer.train()
    model.save_pretrained(bench / "trainer")
    print(json.dumps({"losses": trainer.losses, "took_s": clock.took_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
