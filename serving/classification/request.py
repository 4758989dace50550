"""The body of `POST /v1/classify`."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from serving.openai.protocol import (
    MAX_MODEL_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    RequestPart,
    parse_part,
)
from serving.openai.validation_messages import shorten

MAX_INPUTS = 64
MAX_TOP_K = 1_000
DEFAULT_TOP_K = 5

ClassifiedText = tuple[str] | tuple[str, str]
"""One text, or two that are classified together."""

_Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARACTERS)]
_Pair = Annotated[list[_Text], Field(min_length=2, max_length=2)]
_Inputs = (
    _Text
    | Annotated[list[_Text], Field(min_length=1, max_length=MAX_INPUTS)]
    | Annotated[list[_Pair], Field(min_length=1, max_length=MAX_INPUTS)]
)


def _list_inputs(value: Any) -> Any:
    """Return the inputs as tuples of one or two texts; the number of inputs is limited first."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(
            f"expected a text, a list of texts, or a list of pairs of texts, found {shorten(value)}"
        )
    if not 1 <= len(value) <= MAX_INPUTS:
        raise ValueError(f"expected 1 to {MAX_INPUTS} inputs, got {len(value)}")
    return [_check_input(item, is_pair=isinstance(value[0], list)) for item in value]


def _check_input(item: Any, *, is_pair: bool) -> tuple[str, ...]:
    texts = item if isinstance(item, list) else [item]
    is_valid = isinstance(item, list) == is_pair and len(texts) == (2 if is_pair else 1)
    if not is_valid or not all(isinstance(text, str) and text for text in texts):
        expected = "pairs of two texts that are not empty" if is_pair else "texts, not empty"
        raise ValueError(f"expected only {expected}, found {shorten(item)} among them")
    return tuple(texts)


class ClassifyRequest(RequestPart):
    """A request to classify texts, or pairs of texts."""

    model: str = Field(
        min_length=1, max_length=MAX_MODEL_CHARACTERS, description="A model id or an alias."
    )
    input: Annotated[
        tuple[ClassifiedText, ...], BeforeValidator(_list_inputs, json_schema_input_type=_Inputs)
    ] = Field(description="A text, a list of texts, or a list of pairs of texts.")
    top_k: int = Field(
        default=DEFAULT_TOP_K,
        ge=1,
        le=MAX_TOP_K,
        description="Most labels per input, those of the highest scores.",
    )
    truncate: bool = Field(
        default=False,
        description="Cut inputs that are longer than the model's context, instead of refusing "
        "them; of a pair, the longer text first.",
    )

    @model_validator(mode="after")
    def _check_size(self) -> "ClassifyRequest":
        num_characters = sum(len(text) for texts in self.input for text in texts)
        if num_characters > MAX_TEXT_CHARACTERS:
            raise ValueError(
                f"expected inputs of at most {MAX_TEXT_CHARACTERS} characters in all, got "
                f"{num_characters}"
            )
        return self


def parse_classify_request(body: Any) -> ClassifyRequest:
    """Validate the decoded JSON body; raises `InvalidRequestError`."""
    return parse_part(ClassifyRequest, body)
