"""The common part of generation requests, in OpenAI's format.

Lengths are checked before items are validated, and the validation of a list ends at its first
invalid item. The limits here thus bound the validation time of a request of any size.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    model_validator,
)

from serving.errors import InvalidRequestError
from serving.openai.validation_messages import (
    describe_boolean,
    describe_unknown_keys,
    describe_unsupported,
    translate_validation_error,
)

MAX_TEXT_CHARACTERS = 1_000_000
MAX_MODEL_CHARACTERS = 128
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
MAX_INTEGER = 2**31 - 1
MAX_METADATA = 16
_MAX_KEYS = 256
"""Most keys of one object: several times the known ones, since newer clients send extra nulls."""

FinishReason = Literal["stop", "length"]
Neutral = Mapping[str, tuple[Any, ...]]
"""OpenAI's unsupported parameters, each with the accepted values, which have no effect."""

AnyPart = TypeVar("AnyPart", bound="RequestPart")


def limit_items(num_max: int, noun: str, num_min: int = 0) -> BeforeValidator:
    """Return a validator that counts the items of a list or mapping before they are validated."""

    def check(value: Any) -> Any:
        if isinstance(value, (list, tuple, dict)):
            if len(value) > num_max:
                raise ValueError(f"expected at most {num_max} {noun}, got {len(value)}")
            if len(value) < num_min:
                raise ValueError(f"expected at least {num_min} {noun}, got {len(value)}")
        return value

    return BeforeValidator(check)


Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64)],
        Annotated[str, Field(max_length=512)],
    ],
    Field(max_length=MAX_METADATA),
    limit_items(MAX_METADATA, "entries"),
]
"""Arbitrary metadata of the client, within OpenAI's limits."""


def _describe_value(value: Any) -> dict[str, Any]:
    """Return a JSON schema for one value; code generators do not support `const` lists/objects."""
    if value is None:
        return {"type": "null"}
    if isinstance(value, list):
        items = {"items": _describe_value(value[0])} if value else {"items": {}}
        return {"type": "array", **items, "minItems": len(value), "maxItems": len(value)}
    if isinstance(value, dict):
        properties = {key: _describe_value(item) for key, item in value.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(value),
            "additionalProperties": False,
        }
    return {"const": value}


def _describe_accepted(schema: dict[str, Any], model: type[Any]) -> None:
    """Extend a JSON schema by the nulls and neutral values that `RequestPart` accepts."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        options = field.get("anyOf", [field])
        if name not in required and {"type": "null"} not in options:
            kept = {key: field.pop(key) for key in ("title", "description") if key in field}
            default = {"default": field.pop("default")} if "default" in field else {}
            inner = field.pop("anyOf", None) or [dict(field)]
            field.clear()
            field.update({**kept, "anyOf": [*inner, {"type": "null"}], **default})
    for name, values in model.list_neutral_values().items():
        schema["properties"][name] = {
            "anyOf": [_describe_value(value) for value in (*values, None)],
            "description": "Not supported; only accepted with a value that has no effect.",
        }


class RequestPart(BaseModel):
    """An object in a request; null means "not given", as in OpenAI's API.

    Unknown keys are rejected, so that no misspelt parameter is silently ignored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_describe_accepted)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, value: Any) -> Any:
        """Remove null and neutral values; reject unknown keys and values of the wrong type."""
        if not isinstance(value, Mapping):
            return value
        if len(value) > _MAX_KEYS:
            raise ValueError(f"expected at most {_MAX_KEYS} parameters, got {len(value)}")
        given = {key: item for key, item in value.items() if item is not None}
        neutral = cls.list_neutral_values()
        for name in given.keys() & neutral.keys():
            if given.pop(name) not in neutral[name]:
                raise describe_unsupported(name, value[name])
        if unknown := [key for key in given if key not in cls.model_fields]:
            raise describe_unknown_keys(unknown)
        for name, item in given.items():  # pydantic would accept true as 1, and "yes" as true
            if isinstance(item, bool) != (cls.model_fields[name].annotation is bool):
                raise describe_boolean(name, item)
        return given

    @classmethod
    def list_neutral_values(cls) -> Neutral:
        """List OpenAI's unsupported parameters, each with the accepted values."""
        return {}


def _wrap_stop(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class StreamOptions(RequestPart):
    """How a streamed answer is sent."""

    include_usage: bool = Field(
        default=False, description="Send one more chunk at the end, with the token counts."
    )
    include_obfuscation: bool = Field(default=False, description="Not used.")


class GenerationRequest(RequestPart):
    """The fields that chat completions and completions share."""

    model: str = Field(
        min_length=1, max_length=MAX_MODEL_CHARACTERS, description="A model id or an alias."
    )
    n: int = Field(
        default=1, ge=1, le=MAX_CHOICES, description="How many answers to give to each prompt."
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=2,
        description="Randomness, 0 (always the likeliest token) to 2; the model's own if absent.",
    )
    top_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Sample among the likeliest tokens of this total probability, 0 to 1.",
    )
    top_k: int | None = Field(
        default=None,
        ge=0,
        le=MAX_INTEGER,
        description="Sample among this many likeliest tokens; 0 for all. Not in OpenAI's API.",
    )
    seed: int | None = Field(
        default=None,
        ge=-(2**63),
        lt=2**63,
        description="The same seed draws the same tokens, as far as rounding allows.",
    )
    stop: Annotated[
        tuple[_Stop, ...],
        FailFast(),
        limit_items(MAX_STOPS, "stop sequences"),
        BeforeValidator(
            _wrap_stop,
            json_schema_input_type=_Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS)],
        ),
    ] = Field(
        default=(),
        description="A string or up to 4; the answer ends before the first that appears.",
    )
    stream: bool = Field(default=False, description="Send the answer in pieces as it is made.")
    stream_options: StreamOptions | None = Field(
        default=None, description="How to stream; only with stream."
    )
    user: str | None = Field(
        default=None, max_length=256, description="The caller's name for its user; not used."
    )
    safety_identifier: str | None = Field(
        default=None, max_length=256, description="Like `user`; not used."
    )
    prompt_cache_key: str | None = Field(
        default=None, max_length=256, description="Not used: equal beginnings are always shared."
    )

    @model_validator(mode="after")
    def _check_streaming(self) -> "GenerationRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed together with stream: true")
        return self

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


def parse_part(kind: type[AnyPart], body: Any) -> AnyPart:
    """Validate a decoded JSON object.

    Raises `InvalidRequestError` whose `param` names the faulty field.
    """
    if not isinstance(body, Mapping):
        raise InvalidRequestError(
            f"the body holds a {type(body).__name__}; expected a JSON object", code="invalid_body"
        )
    try:
        return kind.model_validate(body)
    except ValidationError as exc:
        raise translate_validation_error(exc) from exc
