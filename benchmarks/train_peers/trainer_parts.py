"""What all runs of Trainer have in common: the collator and the settings of the optimizer."""

from typing import Any

from transformers import DataCollatorForSeq2Seq

from benchmarks.workbench import LEARNING_RATE
from training.spec import TrainingSpec


class CountingCollator:
    """A collator that pads rows to the longest, as is usual with Trainer, and counts tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._collator = DataCollatorForSeq2Seq(tokenizer, padding=True)
        self.num_tokens: list[int] = []

    def __call__(self, rows: list[dict[str, list[int]]]) -> Any:
        """Collate rows into a batch."""
        self.num_tokens.append(sum(len(row["input_ids"]) for row in rows))
        return self._collator(rows)


def list_common_arguments(spec: TrainingSpec) -> dict[str, Any]:
    """List arguments of one epoch with our optimizer, without logging and a progress bar."""
    return {
        "num_train_epochs": 1,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "weight_decay": spec.weight_decay,
        "adam_beta1": spec.adam_betas[0],
        "adam_beta2": spec.adam_betas[1],
        "adam_epsilon": spec.adam_epsilon,
        "max_grad_norm": spec.max_grad_norm,
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
