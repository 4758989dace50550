"""The body of `POST /v1/chat/completions`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, FailFast, Field, model_validator

from serving.openai.protocol import (
    MAX_INTEGER,
    MAX_TEXT_CHARACTERS,
    MAX_TOP_LOGPROBS,
    GenerationRequest,
    Metadata,
    Neutral,
    RequestPart,
    limit_items,
    parse_part,
)
from serving.openai.validation_messages import shorten
from templating.arguments import MAX_ARGUMENT_CHARACTERS, MAX_ARGUMENTS, check_request_arguments

MAX_MESSAGES = 512
MAX_TEXT_PARTS = 1024

_NOT_SUPPORTED: Neutral = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}


_NEUTRAL_IN_MESSAGES: Neutral = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
    "tool_calls": ([],),
}


_TemplateValue = Annotated[str, Field(max_length=MAX_ARGUMENT_CHARACTERS)] | int | float | bool


class TextPart(BaseModel):
    """A text part of a message, the only supported kind."""

    type: Literal["text"]
    text: str = Field(max_length=MAX_TEXT_CHARACTERS)


_Content = (
    Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]
    | Annotated[list[TextPart], Field(max_length=MAX_TEXT_PARTS)]
    | None
)


def _join_text_parts(value: Any) -> Any:
    """Join a list of text parts with line ends; return other values unchanged."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_TEXT_PARTS:
        raise ValueError(f"expected at most {MAX_TEXT_PARTS} text parts, got {len(value)}")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ValueError(
                f"expected a string or parts such as {{'type': 'text', 'text': '...'}}, found a "
                f"part of type {shorten(kind)}"
            )
        texts.append(part["text"])
    return "\n".join(texts)


class ChatMessage(RequestPart):
    """One turn of a conversation; an assistant's turn may be an earlier response of the API."""

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="Who speaks; 'developer' is another word for 'system'."
    )
    content: Annotated[str, BeforeValidator(_join_text_parts, json_schema_input_type=_Content)] = (
        Field(
            max_length=MAX_TEXT_CHARACTERS,
            description="What is said: a string, or text parts that are joined with line ends; an "
            "assistant's may be null.",
        )
    )
    type: Literal["text"] = Field(
        default="text", description="What evaluation harnesses add; there is nothing else."
    )
    name: str | None = Field(
        default=None,
        max_length=64,
        description="A name for the speaker; accepted, but not shown to the model.",
    )

    reasoning_content: str | None = Field(
        default=None,
        max_length=MAX_TEXT_CHARACTERS,
        description="An assistant's reasoning before the content, for templates that show it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_content(cls, value: Any) -> Any:
        """Replace the missing or null content of an assistant's turn by an empty string."""
        is_assistant = isinstance(value, dict) and value.get("role") == "assistant"
        if is_assistant and value.get("content") is None:
            return {**value, "content": ""}
        return value

    def to_template_message(self) -> dict[str, str]:
        """Return the turn in the form that chat templates expect."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self.content}
        if self.role == "assistant" and self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        return message

    @classmethod
    def list_neutral_values(cls) -> Neutral:
        """List further fields of OpenAI's response messages, with their accepted empty values."""
        return _NEUTRAL_IN_MESSAGES


class ChatCompletionRequest(GenerationRequest):
    """A request to continue a conversation."""

    messages: Annotated[
        tuple[ChatMessage, ...], FailFast(), limit_items(MAX_MESSAGES, "messages", 1)
    ] = Field(
        min_length=1, max_length=MAX_MESSAGES, description="The conversation, oldest turn first."
    )
    max_completion_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_INTEGER,
        description="Most tokens to generate; what the context has left is the limit above it.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_INTEGER,
        description="The older name of max_completion_tokens.",
    )
    logprobs: bool = Field(default=False, description="Return the log-probability of each token.")
    top_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Tell as many of the likeliest tokens at each place; only with logprobs.",
    )
    metadata: Metadata = Field(
        default_factory=dict, description="The caller's own notes; not used."
    )
    chat_template_kwargs: Annotated[
        dict[Annotated[str, Field(max_length=64)], _TemplateValue],
        BeforeValidator(check_request_arguments),
    ] = Field(
        default_factory=dict,
        max_length=MAX_ARGUMENTS,
        description='Variables of the model\'s chat template, as in {"enable_thinking": false}; '
        "not in OpenAI's API, but in vLLM's.",
    )

    continue_final_message: bool = Field(
        default=False,
        description="Continue the last message, the beginning of an assistant's answer, instead of "
        "answering it; only the continuation is returned. Needs `add_generation_prompt: false`. "
        "Not in OpenAI's API, but in vLLM's.",
    )
    add_generation_prompt: bool = Field(
        default=True,
        description="false only together with `continue_final_message`, as in vLLM's API.",
    )

    @classmethod
    def list_neutral_values(cls) -> Neutral:
        """List the unsupported fields of OpenAI's chat completions and their accepted values."""
        return _NOT_SUPPORTED

    @model_validator(mode="after")
    def _check_together(self) -> "ChatCompletionRequest":
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) and max_completion_tokens "
                f"({self.max_completion_tokens}) are one setting with two names; give one of them"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is only allowed together with logprobs: true")
        self._check_continuation()
        num_characters = sum(
            len(message.content) + len(message.reasoning_content or "") for message in self.messages
        )
        if num_characters > MAX_TEXT_CHARACTERS:
            raise ValueError(
                f"expected messages of at most {MAX_TEXT_CHARACTERS} characters in all, got "
                f"{num_characters}"
            )
        return self

    def _check_continuation(self) -> None:
        if self.continue_final_message == self.add_generation_prompt:
            raise ValueError(
                "continue_final_message: true and add_generation_prompt: false are only allowed "
                "together"
            )
        last = self.messages[-1]
        is_begun = last.role == "assistant" and last.content and not last.reasoning_content
        if self.continue_final_message and not is_begun:
            raise ValueError(
                "continue_final_message needs a last message of the assistant with content and "
                f"without reasoning_content, found one of the role {last.role!r} with "
                f"{len(last.content)} characters"
            )

    @property
    def max_new_tokens(self) -> int | None:
        """The limit on generated tokens under either of its names; None if not given."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        """Number of top tokens to return per position; None to return no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def to_template_messages(self) -> list[dict[str, str]]:
        """Return the conversation in the form that chat templates expect."""
        return [message.to_template_message() for message in self.messages]


def parse_chat_request(body: Any) -> ChatCompletionRequest:
    """Validate the decoded JSON body of a chat completion; raises `InvalidRequestError`."""
    return parse_part(ChatCompletionRequest, body)
