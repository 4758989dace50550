"""The body of `POST /v1/classify`."""

import base64
import binascii
import re
from typing import Annotated, Any, NamedTuple

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
_Images = str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(;[\w.=+-]+)*;base64,", re.IGNORECASE)


class ImageInput(NamedTuple):
    """An encoded image, and its name in messages: its index, or the name of its file."""

    name: str
    content: bytes


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


def _list_images(value: Any) -> Any:
    """Return the images as `ImageInput`; those of an upload are such already."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(f"expected an image in base64, or a list of them, found {shorten(value)}")
    if not 1 <= len(value) <= MAX_INPUTS:
        raise ValueError(f"expected 1 to {MAX_INPUTS} images, got {len(value)}")
    return [
        item if isinstance(item, ImageInput) else _decode_image(f"image {index}", item)
        for index, item in enumerate(value)
    ]


def _decode_image(name: str, item: Any) -> ImageInput:
    if not isinstance(item, str):
        raise ValueError(f"{name} is {shorten(item)}, expected base64 or a data URL")
    if item[:5].lower() == "data:":
        head = _DATA_URL.match(item[:256])
        if head is None:
            raise ValueError(
                f"{name} begins with {shorten(item[:40])}, expected a data URL in base64, as in "
                "'data:image/png;base64,…'"
            )
        item = item[head.end() :]
    try:
        return ImageInput(name, base64.b64decode(item, validate=True))
    except (binascii.Error, ValueError) as exc:
        raise ValueError(f"{name} is neither base64 nor a data URL ({exc})") from exc


class ClassifyRequest(RequestPart):
    """A request to classify texts, pairs of texts, or images."""

    model: str = Field(
        min_length=1, max_length=MAX_MODEL_CHARACTERS, description="A model id or an alias."
    )
    input: (
        Annotated[
            tuple[ClassifiedText, ...],
            BeforeValidator(_list_inputs, json_schema_input_type=_Inputs),
        ]
        | None
    ) = Field(default=None, description="A text, a list of texts, or a list of pairs of texts.")
    images: (
        Annotated[
            tuple[ImageInput, ...], BeforeValidator(_list_images, json_schema_input_type=_Images)
        ]
        | None
    ) = Field(
        default=None,
        description="An image in base64 or as a data URL, or a list of them; instead of input.",
    )
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

    @property
    def inputs(self) -> tuple[ClassifiedText, ...] | tuple[ImageInput, ...]:
        """The texts or the images."""
        return self.images or self.input or ()

    @model_validator(mode="after")
    def _check_size(self) -> "ClassifyRequest":
        if (self.input is None) == (self.images is None):
            raise ValueError("expected either 'input' with texts or 'images' with images")
        num_characters = sum(len(text) for texts in self.input or () for text in texts)
        if num_characters > MAX_TEXT_CHARACTERS:
            raise ValueError(
                f"expected inputs of at most {MAX_TEXT_CHARACTERS} characters in all, got "
                f"{num_characters}"
            )
        return self


def parse_classify_request(body: Any) -> ClassifyRequest:
    """Validate the decoded JSON body; raises `InvalidRequestError`."""
    return parse_part(ClassifyRequest, body)
