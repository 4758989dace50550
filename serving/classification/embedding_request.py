"""The body of `POST /v1/embeddings`, in OpenAI's format."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from serving.classification.request import MAX_INPUTS
from serving.loading.pooling import Pooling
from serving.openai.protocol import (
    MAX_MODEL_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    Neutral,
    RequestPart,
    parse_part,
)
from serving.openai.validation_messages import shorten

MAX_TOKENS = 1_000_000
MAX_DIMENSIONS = 1 << 20

_Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARACTERS)]
_Tokens = Annotated[list[int], Field(min_length=1, max_length=MAX_TOKENS)]
_Inputs = (
    _Text
    | Annotated[list[_Text], Field(min_length=1, max_length=MAX_INPUTS)]
    | _Tokens
    | Annotated[list[_Tokens], Field(min_length=1, max_length=MAX_INPUTS)]
)


def _list_inputs(value: Any) -> Any:
    """Return the inputs as texts, or as tuples of tokens; their number is limited first."""
    if isinstance(value, str) or (isinstance(value, list) and value and _is_token(value[0])):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(
            "expected a text, a list of texts, a list of tokens, or a list of such lists, found "
            f"{shorten(value)}"
        )
    if not 1 <= len(value) <= MAX_INPUTS:
        raise ValueError(f"expected 1 to {MAX_INPUTS} inputs, got {len(value)}")
    return [_check_input(item, is_text=isinstance(value[0], str)) for item in value]


def _check_input(item: Any, *, is_text: bool) -> str | tuple[int, ...]:
    if is_text and isinstance(item, str) and item:
        return item
    if not is_text and isinstance(item, list) and item and all(map(_is_token, item)):
        return tuple(item)
    expected = "texts, not empty" if is_text else "lists of tokens, not empty"
    raise ValueError(f"expected only {expected}, found {shorten(item)} among them")


def _is_token(value: Any) -> bool:
    return type(value) is int


class EmbeddingRequest(RequestPart):
    """A request for the vectors of texts."""

    model: str = Field(
        min_length=1, max_length=MAX_MODEL_CHARACTERS, description="A model id or an alias."
    )
    input: Annotated[
        tuple[str | tuple[int, ...], ...],
        BeforeValidator(_list_inputs, json_schema_input_type=_Inputs),
    ] = Field(description="A text, a list of texts, a list of tokens, or a list of such lists.")
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="Numbers, or base64 of fp32 in little-endian byte order."
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DIMENSIONS,
        description="Only the model's own number of dimensions is supported.",
    )
    pooling: Pooling | None = Field(
        default=None,
        description="Mean over the tokens, or the vector of the first one. By default as the model "
        "names it in the file of sentence-transformers, else the mean.",
    )
    truncate: bool = Field(
        default=False,
        description="Cut inputs that are longer than the model's context, instead of refusing "
        "them.",
    )
    user: str | None = Field(default=None, max_length=512, description="Not used.")

    @classmethod
    def list_neutral_values(cls) -> Neutral:
        """List no other parameters."""
        return {}

    @model_validator(mode="after")
    def _check_size(self) -> "EmbeddingRequest":
        num_characters = sum(map(len, self.input))
        if num_characters > MAX_TEXT_CHARACTERS:
            raise ValueError(
                f"expected inputs of at most {MAX_TEXT_CHARACTERS} characters or tokens in all, "
                f"got {num_characters}"
            )
        return self


def parse_embedding_request(body: Any) -> EmbeddingRequest:
    """Validate the decoded JSON body; raises `InvalidRequestError`."""
    return parse_part(EmbeddingRequest, body)
