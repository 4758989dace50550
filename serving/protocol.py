"""What requests for text have in common, in OpenAI's shapes."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from serving.errors import InvalidRequestError

MAX_TEXT_CHARACTERS = 1_000_000
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
_MAX_DEPTH = 8

STRICT = ConfigDict(extra="forbid", frozen=True)
"""Nothing unknown in a request, so that no misspelt parameter is silently ignored."""

FinishReason = Literal["stop", "length"]
Neutral = Mapping[str, tuple[Any, ...]]
"""OpenAI's parameters that we lack, and for each the values that ask for nothing."""

AnyRequest = TypeVar("AnyRequest", bound="GenerationRequest")


def _wrap_stop(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class StreamOptions(BaseModel):
    """How a streamed answer is sent."""

    model_config = STRICT

    include_usage: bool = Field(
        default=False, description="Send one more chunk at the end, with the token counts."
    )
    include_obfuscation: bool = Field(default=False, description="Not used.")


class GenerationRequest(BaseModel):
    """The fields that chat completions and completions share."""

    model_config = STRICT

    model: str = Field(min_length=1, max_length=128, description="A model id or an alias.")
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
        le=2**31 - 1,
        description="Sample among this many likeliest tokens; 0 for all. Not in OpenAI's API.",
    )
    seed: int | None = Field(
        default=None,
        ge=-(2**63),
        lt=2**63,
        description="The same seed draws the same tokens, as far as rounding allows.",
    )
    stop: Annotated[
        tuple[
            Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)],
            ...,
        ],
        BeforeValidator(_wrap_stop),
    ] = Field(
        default=(),
        max_length=MAX_STOPS,
        description="Up to 4 strings; the answer ends before the first that appears.",
    )
    stream: bool = Field(default=False, description="Send the answer in pieces as it is made.")
    stream_options: StreamOptions | None = Field(
        default=None, description="How to stream; only with stream."
    )
    user: str | None = Field(
        default=None, max_length=256, description="The caller's name for its user; not used."
    )
    safety_identifier: str | None = Field(
        default=None, max_length=256, description="The like of `user`; not used."
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
        """Whether a stream ends with its counts of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


def parse_request(kind: type[AnyRequest], body: Any, not_supported: Neutral) -> AnyRequest:
    """Check the decoded JSON body of a request; null stands for "not given", as OpenAI has it.

    Raises `InvalidRequestError` whose `param` names the field to blame.
    """
    if not isinstance(body, Mapping):
        raise InvalidRequestError(
            f"the body holds a {type(body).__name__}; expected a JSON object", code="invalid_body"
        )
    wanted = {key: value for key, value in body.items() if value is not None}
    for name, neutral in not_supported.items():
        if name in wanted and wanted.pop(name) not in neutral:
            raise InvalidRequestError(
                f"{name!r} is not supported yet (found {shorten(body[name])}); leave it out",
                param=name,
                code="unsupported_parameter",
            )
    try:
        return kind.model_validate(_drop_nulls(wanted))
    except ValidationError as exc:
        raise _translate(exc) from exc


def _drop_nulls(value: Any, depth: int = 0) -> Any:
    """Leave out what is null in objects, down to the depth that a request can have."""
    if depth == _MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {
            key: _drop_nulls(item, depth + 1) for key, item in value.items() if item is not None
        }
    if isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        return [_drop_nulls(item, depth + 1) for item in value]
    return value


def _translate(exc: ValidationError) -> InvalidRequestError:
    error = exc.errors(include_url=False)[0]
    param = ""
    for part in error["loc"]:
        param += f"[{part}]" if isinstance(part, int) else f".{part}" if param else str(part)
    if error["type"] == "extra_forbidden":
        return InvalidRequestError(
            f"{param!r} is not a known parameter", param=param, code="unknown_parameter"
        )
    if error["type"] == "missing":
        return InvalidRequestError(
            f"{param!r} is required", param=param, code="missing_required_parameter"
        )
    message = error["msg"].removeprefix("Value error, ")
    if not param:
        return InvalidRequestError(message, code="invalid_value")
    found = "" if error["type"] == "value_error" else f" (found {shorten(error['input'])})"
    return InvalidRequestError(f"{param!r}: {message}{found}", param=param, code="invalid_value")


def shorten(value: Any) -> str:
    """Show what was found in a request, in a few words."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
