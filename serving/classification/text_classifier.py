"""One loaded text classifier: tokens of texts, and scores of its labels."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from model_files.pad_id import find_pad_id
from model_files.tokenizer_faults import translate_faults
from serving.classification.request import ClassifiedText
from serving.classification.wire import Classification, LabelScore
from serving.errors import InvalidRequestError
from serving.loading.loading import load_classifier_model

MAX_BATCH_TOKENS = 4_096
"""Most tokens of one forward pass, padding included, unless a single input has more."""
_UNLIMITED_CONTEXT = 1_000_000  # tokenizers report 10^30 if it is unknown


class EncodedText(NamedTuple):
    """One input as tokens; `type_ids` tell two texts apart, and are empty if the model has none."""

    input_ids: tuple[int, ...]
    type_ids: tuple[int, ...]


class TextClassifier:
    """A model with a classification head, and its tokenizer.

    Encode in one thread at a time, and predict in one thread at a time.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._has_types = "token_type_ids" in tokenizer.model_input_names
        config = model.config
        self._pad_id = find_pad_id(config, tokenizer)
        config.get_text_config().pad_token_id = self._pad_id  # if it had none
        self._labels = [str(config.id2label[number]) for number in range(config.num_labels)]
        kind = "regression" if config.num_labels == 1 else "single_label_classification"
        self._problem_type = config.problem_type or kind
        self.context_length = _find_context_length(model, tokenizer)

    @classmethod
    def load(cls, path: Path) -> "TextClassifier":
        """Load a published model; raises `EngineDeadError`."""
        return cls(*load_classifier_model(path))

    def encode(self, inputs: Sequence[ClassifiedText], *, truncates: bool) -> list[EncodedText]:
        """Tokenise inputs as training does, with the special tokens around them.

        Raises `InvalidRequestError` for an input that is longer than the context, unless it
        `truncates`, and for one without any token.
        """
        encoded = self._tokenize(inputs, None)
        for index, one in enumerate(encoded):
            num_tokens = len(one.input_ids)
            if num_tokens == 0:
                raise InvalidRequestError(f"input {index} has no tokens", param="input")
            if num_tokens > self.context_length:
                if not truncates:
                    raise InvalidRequestError(
                        f"input {index} has {num_tokens} tokens; expected at most "
                        f"{self.context_length}, the model's context; shorten it, or set "
                        "truncate to true",
                        param="input",
                        code="context_length_exceeded",
                    )
                (encoded[index],) = self._tokenize([inputs[index]], self.context_length)
        return encoded

    def predict(self, inputs: Sequence[EncodedText]) -> list[tuple[float, ...]]:
        """Return the scores of all labels for each input, or its value."""
        scores: list[tuple[float, ...]] = [()] * len(inputs)
        for indices in plan_batches([len(one.input_ids) for one in inputs]):
            found = self._compute([inputs[index] for index in indices])
            for index, row in zip(indices, found.tolist(), strict=True):
                scores[index] = tuple(row)
        return scores

    def describe(self, scores: Sequence[float], top_k: int) -> Classification:
        """Return the `top_k` labels of the highest scores; or the value of a regression."""
        if self._problem_type == "regression" and len(scores) == 1:
            return Classification(value=scores[0])
        ranked = sorted(zip(self._labels, scores, strict=True), key=lambda pair: -pair[1])
        return Classification(tuple(LabelScore(*pair) for pair in ranked[:top_k]))

    def _compute(self, rows: Sequence[EncodedText]) -> torch.Tensor:
        """Return scores of shape `[rows, labels]` in fp32."""
        length = max(len(row.input_ids) for row in rows)
        inputs = {
            "input_ids": _pad([row.input_ids for row in rows], length, self._pad_id),
            "attention_mask": _pad([(1,) * len(row.input_ids) for row in rows], length, 0),
        }
        if self._has_types:
            inputs["token_type_ids"] = _pad([row.type_ids for row in rows], length, 0)
        with torch.inference_mode():
            logits: torch.Tensor = self._model(**inputs).logits.float()
        if self._problem_type == "regression":
            return logits
        if self._problem_type == "multi_label_classification":
            return logits.sigmoid()
        return logits.softmax(-1)

    def _tokenize(
        self, inputs: Sequence[ClassifiedText], max_length: int | None
    ) -> list[EncodedText]:
        """Return tokens of inputs, truncated to `max_length` if it is given."""
        pairs = [texts[1] for texts in inputs if len(texts) == 2]
        with translate_faults():
            encoded = self._tokenizer(
                [texts[0] for texts in inputs],
                pairs or None,
                truncation="longest_first" if max_length else False,
                max_length=max_length,
                return_attention_mask=False,
                return_token_type_ids=self._has_types,
                verbose=False,
            )
        types = encoded.get("token_type_ids") or [()] * len(inputs)
        return [
            EncodedText(tuple(ids), tuple(kinds))
            for ids, kinds in zip(encoded["input_ids"], types, strict=True)
        ]


def plan_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of each batch: similar lengths, at most `MAX_BATCH_TOKENS` with padding."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > MAX_BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _pad(rows: Sequence[Sequence[int]], length: int, pad: int) -> torch.Tensor:
    """Return rows padded on the right, shape `[rows, length]`."""
    return torch.tensor([[*row, *[pad] * (length - len(row))] for row in rows])


def _find_context_length(model: Any, tokenizer: Any) -> int:
    """Return the most tokens of an input; RoBERTa's positions begin after its padding id."""
    length = getattr(model.config, "max_position_embeddings", None) or _UNLIMITED_CONTEXT
    for name, module in model.named_modules():
        if name.endswith("position_embeddings"):
            padding = getattr(module, "padding_idx", None)
            length -= 0 if padding is None else padding + 1
            break
    return int(min(length, tokenizer.model_max_length))
