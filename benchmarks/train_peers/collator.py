"""The collator of Trainer's runs."""

from typing import Any

from transformers import DataCollatorForSeq2Seq


class CountingCollator:
    """A collator that pads rows to the longest, as is usual with Trainer, and counts tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._collator = DataCollatorForSeq2Seq(tokenizer, padding=True)
        self.num_tokens: list[int] = []

    def __call__(self, rows: list[dict[str, list[int]]]) -> Any:
        """Collate rows into a batch."""
        self.num_tokens.append(sum(len(row["input_ids"]) for row in rows))
        return self._collator(rows)
