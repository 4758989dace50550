"""Tokens of texts, and batches of them, for the models of `serving.classification`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from model_files.pad_id import find_pad_id
from model_files.tokenizer_faults import translate_faults
from serving.classification.passes import plan_passes
from serving.classification.request import ClassifiedText
from serving.errors import InvalidRequestError

_UNLIMITED_CONTEXT = 1_000_000  # tokenizers report 10^30 if it is unknown


class EncodedText(NamedTuple):
    """One input as tokens; `type_ids` tell two texts apart, and are empty if the model has none."""

    input_ids: tuple[int, ...]
    type_ids: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """The number of tokens, special ones included."""
        return len(self.input_ids)


class TextEncoding:
    """The tokenizer of a model, and the inputs of its forward passes."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._has_types = "token_type_ids" in tokenizer.model_input_names
        self._pad_id = find_pad_id(model.config, tokenizer)
        model.config.get_text_config().pad_token_id = self._pad_id  # if it had none
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self.context_length = _find_context_length(model, tokenizer)

    def encode(self, inputs: Sequence[ClassifiedText], *, truncates: bool) -> list[EncodedText]:
        """Tokenise inputs as training does, with the special tokens around them.

        Raises `InvalidRequestError` for an input that is longer than the context, unless it
        `truncates`, and for one without any token.
        """
        encoded = self._tokenize(inputs, None)
        for index, one in enumerate(encoded):
            if one.num_tokens > self.context_length and truncates:
                (encoded[index],) = self._tokenize([inputs[index]], self.context_length)
            self._check_length(index, encoded[index].num_tokens)
        return encoded

    def take_tokens(self, inputs: Sequence[Sequence[int]], *, truncates: bool) -> list[EncodedText]:
        """Return inputs that are tokens already, special ones included; raises as `encode`."""
        encoded = []
        for index, given in enumerate(inputs):
            ids = tuple(given[: self.context_length]) if truncates else tuple(given)
            if unknown := next((one for one in ids if not 0 <= one < self._vocab_size), None):
                raise InvalidRequestError(
                    f"input {index} has the token {unknown}; expected 0 to {self._vocab_size - 1}, "
                    "the model's vocabulary",
                    param="input",
                )
            self._check_length(index, len(ids))
            encoded.append(EncodedText(ids, (0,) * len(ids) if self._has_types else ()))
        return encoded

    def compute_batches(
        self,
        inputs: Sequence[EncodedText],
        compute: Callable[[Sequence[int], dict[str, torch.Tensor]], torch.Tensor],
    ) -> list[tuple[float, ...]]:
        """Compute a row of numbers for each input, in batches of similar lengths.

        `compute` gets the indices of the rows and the model's inputs, and returns `[rows, columns]`
        in fp32.
        """
        found: list[tuple[float, ...]] = [()] * len(inputs)
        for indices in plan_passes([one.num_tokens for one in inputs]):
            with torch.inference_mode():
                rows = compute(indices, self._pad([inputs[index] for index in indices]))
            for index, row in zip(indices, rows.tolist(), strict=True):
                found[index] = tuple(row)
        return found

    def _pad(self, rows: Sequence[EncodedText]) -> dict[str, torch.Tensor]:
        length = max(row.num_tokens for row in rows)
        inputs = {
            "input_ids": _pad([row.input_ids for row in rows], length, self._pad_id),
            "attention_mask": _pad([(1,) * row.num_tokens for row in rows], length, 0),
        }
        if self._has_types:
            inputs["token_type_ids"] = _pad([row.type_ids for row in rows], length, 0)
        return inputs

    def _check_length(self, index: int, num_tokens: int) -> None:
        if num_tokens == 0:
            raise InvalidRequestError(f"input {index} has no tokens", param="input")
        if num_tokens > self.context_length:
            raise InvalidRequestError(
                f"input {index} has {num_tokens} tokens; expected at most "
                f"{self.context_length}, the model's context; shorten it, or set truncate to true",
                param="input",
                code="context_length_exceeded",
            )

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
