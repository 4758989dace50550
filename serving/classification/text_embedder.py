"""One loaded encoder: vectors of texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from serving.classification.embedding_request import EmbeddingRequest
from serving.classification.text_encoding import EncodedText, TextEncoding
from serving.errors import EngineDeadError
from serving.loading.loading import load_predicting_model, load_tokenizer
from serving.loading.pooling import Pooling, read_pooling
from serving.served_task import ServedTask


class PooledText(NamedTuple):
    """One input as tokens, and how its vectors become one."""

    text: EncodedText
    pooling: Pooling

    @property
    def num_tokens(self) -> int:
        """The number of tokens, special ones included."""
        return self.text.num_tokens


class TextEmbedder:
    """An encoder and its tokenizer; a `Predictor` whose rows are vectors of length one."""

    input_bytes = 0
    labels: Sequence[str] = ()
    predicts_value = False

    def __init__(self, model: Any, tokenizer: Any, pooling: Pooling) -> None:
        self._model = model
        self._texts = TextEncoding(model, tokenizer)
        self._pooling = pooling

    @classmethod
    def load(cls, path: Path, task: ServedTask) -> "TextEmbedder":
        """Load a published model; raises `EngineDeadError`."""
        try:
            pooling = read_pooling(path)
        except (OSError, ValueError) as exc:
            raise EngineDeadError(f"model {path.name!r} cannot be loaded: {exc}") from exc
        return cls(load_predicting_model(path, task), load_tokenizer(path), pooling)

    def encode(self, request: EmbeddingRequest) -> list[PooledText]:
        """Tokenise texts, or take tokens, special ones included; by default with its own pooling.

        Raises `InvalidRequestError` as `TextEncoding.encode` does.
        """
        texts = [(text,) for text in request.input if isinstance(text, str)]
        tokens = [given for given in request.input if not isinstance(given, str)]
        encoded = (
            self._texts.encode(texts, truncates=request.truncate)
            if texts
            else self._texts.take_tokens(tokens, truncates=request.truncate)
        )
        return [PooledText(text, request.pooling or self._pooling) for text in encoded]

    def predict(self, inputs: Sequence[PooledText]) -> list[tuple[float, ...]]:
        """Return the vector of each input."""
        is_mean = torch.tensor([one.pooling == "mean" for one in inputs])

        def compute(indices: Sequence[int], batch: dict[str, torch.Tensor]) -> torch.Tensor:
            hidden = self._model(**batch).last_hidden_state.float()
            pooled = pool(hidden, batch["attention_mask"], is_mean[list(indices)])
            return torch.nn.functional.normalize(pooled, dim=-1)

        return self._texts.compute_batches([one.text for one in inputs], compute)


def pool(hidden: torch.Tensor, mask: torch.Tensor, is_mean: torch.Tensor) -> torch.Tensor:
    """Return the mean over the tokens of a row, or its first vector.

    `hidden` has the shape `[rows, tokens, width]`, `mask` `[rows, tokens]` with zeros for padding,
    and `is_mean` `[rows]`.
    """
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    means = (hidden * weights).sum(1) / weights.sum(1)
    return torch.where(is_mean.unsqueeze(-1), means, hidden[:, 0])
