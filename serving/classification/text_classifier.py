"""One loaded text classifier: scores of its labels for texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from serving.classification.class_scores import ClassScores
from serving.classification.request import ClassifyRequest
from serving.classification.text_encoding import EncodedText, TextEncoding
from serving.errors import InvalidRequestError
from serving.loading.loading import load_predicting_model, load_tokenizer
from serving.served_task import ServedTask


class TextClassifier:
    """A model with a classification head, and its tokenizer; a `Predictor`."""

    input_bytes = 0

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._texts = TextEncoding(model, tokenizer)
        self._scores = ClassScores(model.config)
        self.labels: Sequence[str] = self._scores.labels
        self.predicts_value = self._scores.predicts_value

    @classmethod
    def load(cls, path: Path, task: ServedTask) -> "TextClassifier":
        """Load a published model; raises `EngineDeadError`."""
        return cls(load_predicting_model(path, task), load_tokenizer(path))

    def encode(self, request: ClassifyRequest) -> list[EncodedText]:
        """Tokenise texts or pairs; raises `InvalidRequestError` as `TextEncoding.encode`."""
        if request.input is None:
            raise InvalidRequestError(
                "the model is a text classifier; send texts as 'input' instead of 'images'",
                param="images",
            )
        return self._texts.encode(request.input, truncates=request.truncate)

    def predict(self, inputs: Sequence[EncodedText]) -> list[tuple[float, ...]]:
        """Return the scores of all labels for each input, or its value."""
        return self._texts.compute_batches(inputs, self._compute)

    def _compute(
        self,
        indices: Sequence[int],  # noqa: ARG002 - all rows are alike
        inputs: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        return self._scores.compute(self._model(**inputs).logits)
