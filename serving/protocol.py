"""Requests and answers of chat completions, in OpenAI's shapes."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from serving.errors import InvalidRequestError

MAX_MESSAGES = 512
MAX_TEXT_CHARACTERS = 1_000_000
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256

FinishReason = Literal["stop", "length"]

_NOT_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "seed": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
"""OpenAI's parameters that we lack, and for each the values that ask for nothing."""


def _drop_nulls(value: Any) -> Any:
    """Take null for "not given", as OpenAI does."""
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if item is not None}
    return value


def _join_text_parts(value: Any) -> Any:
    """Turn a list of text parts into one string, a line each; leave a string alone."""
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ValueError(
                f"expected a string or parts such as {{'type': 'text', 'text': '...'}}, found a "
                f"part of type {kind!r}"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _wrap_stop(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class _RequestPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _take_null_for_absent(cls, value: Any) -> Any:
        return _drop_nulls(value)


class ChatMessage(_RequestPart):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="Who speaks; 'developer' is another word for 'system'."
    )
    content: Annotated[str, BeforeValidator(_join_text_parts)] = Field(
        max_length=MAX_TEXT_CHARACTERS,
        description="What is said: a string, or text parts that are joined with line ends.",
    )
    name: str | None = Field(
        default=None,
        max_length=64,
        description="A name for the speaker; accepted, but not shown to the model.",
    )


class StreamOptions(_RequestPart):
    """How a streamed answer is sent."""

    include_usage: bool = Field(
        default=False, description="Send one more chunk at the end, with the token counts."
    )


class ChatCompletionRequest(_RequestPart):
    """The body of `POST /v1/chat/completions`."""

    model: str = Field(min_length=1, max_length=128, description="A model id or an alias.")
    messages: tuple[ChatMessage, ...] = Field(
        min_length=1, max_length=MAX_MESSAGES, description="The conversation, oldest turn first."
    )
    max_completion_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens to generate; what the context has left is the limit above it.",
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="The older name of max_completion_tokens."
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
    metadata: dict[str, str] = Field(
        default_factory=dict, max_length=16, description="The caller's own notes; not used."
    )

    @model_validator(mode="after")
    def _check_together(self) -> "ChatCompletionRequest":
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) and max_completion_tokens "
                f"({self.max_completion_tokens}) are one setting with two names; give one of them"
            )
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed together with stream: true")
        if sum(len(message.content) for message in self.messages) > MAX_TEXT_CHARACTERS:
            raise ValueError(f"messages hold more than {MAX_TEXT_CHARACTERS} characters together")
        return self

    @property
    def max_new_tokens(self) -> int | None:
        """The limit on generated tokens under either of its names; None if not given."""
        return self.max_completion_tokens or self.max_tokens

    def to_template_messages(self) -> list[dict[str, str]]:
        """Return the conversation as chat templates expect it."""
        return [
            {
                "role": "system" if message.role == "developer" else message.role,
                "content": message.content,
            }
            for message in self.messages
        ]


def parse_chat_request(body: Any) -> ChatCompletionRequest:
    """Check the decoded JSON body of a chat completion.

    Raises `InvalidRequestError` whose `param` names the field to blame.
    """
    if not isinstance(body, Mapping):
        raise InvalidRequestError(
            f"the body holds a {type(body).__name__}; expected a JSON object", code="invalid_body"
        )
    wanted = {key: value for key, value in body.items() if value is not None}
    for name, neutral in _NOT_SUPPORTED.items():
        if name in wanted and wanted.pop(name) not in neutral:
            raise InvalidRequestError(
                f"{name!r} is not supported yet (found {_shorten(body[name])}); leave it out",
                param=name,
                code="unsupported_parameter",
            )
    try:
        return ChatCompletionRequest.model_validate(wanted)
    except ValidationError as exc:
        raise _translate(exc) from exc


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
    found = "" if error["type"] == "value_error" else f" (found {_shorten(error['input'])})"
    return InvalidRequestError(f"{param!r}: {message}{found}", param=param, code="invalid_value")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
