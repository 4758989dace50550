"""The model alone: forward passes over batches of texts of similar length, in a process.

The texts are tokenised before the time is taken. The size of a batch is the fastest one of several.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BATCH_SIZES = (4, 8, 16, 32, 64)
MAX_TOKENS = 128


def main(connection: Any, model: Path, threads: int, sample: Sequence[str]) -> None:
    """Classify each list of texts received, and send back the texts per second, until closed."""
    from serving.engine.process_settings import prepare_process

    prepare_process(threads)
    alone = ModelAlone(model, sample)
    connection.send(alone.batch_size)
    while True:
        try:
            texts = connection.recv()
        except EOFError:
            return
        alone.measure(texts[:64])  # this process was paused, like the servers
        connection.send(alone.measure(texts))


class ModelAlone:
    """A model and its tokenizer."""

    def __init__(self, model: Path, sample: Sequence[str]) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self._model: Any = AutoModelForSequenceClassification.from_pretrained(model).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self.batch_size = BATCH_SIZES[0]
        self.batch_size = max(BATCH_SIZES, key=lambda size: self._try(size, sample))

    def measure(self, texts: Sequence[str]) -> float:
        """Return the texts per second of all forward passes."""
        return self._run(self._prepare(texts), len(texts))

    def _try(self, batch_size: int, sample: Sequence[str]) -> float:
        self.batch_size = batch_size
        batches = self._prepare(sample)
        self._run(batches[:2], 1)
        return self._run(batches, len(sample))

    def _prepare(self, texts: Sequence[str]) -> list[Any]:
        texts = sorted(texts, key=lambda text: len(self._tokenizer(text)["input_ids"]))
        return [
            self._tokenizer(
                list(texts[start : start + self.batch_size]),
                padding=True,
                truncation=True,
                max_length=MAX_TOKENS,
                return_tensors="pt",
            )
            for start in range(0, len(texts), self.batch_size)
        ]

    def _run(self, batches: Sequence[Any], num_texts: int) -> float:
        import torch

        started = time.perf_counter()
        with torch.inference_mode():
            for batch in batches:
                self._model(**batch).logits.softmax(-1).tolist()
        return num_texts / (time.perf_counter() - started)
