"""The body of `POST /v1/completions`."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from serving.openai.protocol import (
    MAX_CHOICES,
    MAX_INTEGER,
    MAX_TEXT_CHARACTERS,
    MAX_TOP_LOGPROBS,
    GenerationRequest,
    Neutral,
    parse_part,
)
from serving.openai.validation_messages import shorten

MAX_PROMPTS = 128

_NOT_SUPPORTED: Neutral = {
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "suffix": ("",),
}

Prompt = str | tuple[int, ...]

_Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]
_Tokens = Annotated[
    list[Annotated[int, Field(ge=0, le=MAX_INTEGER)]],
    Field(min_length=1, max_length=MAX_TEXT_CHARACTERS),
]
_Prompts = (
    _Text
    | _Tokens
    | Annotated[list[_Text], Field(min_length=1, max_length=MAX_PROMPTS)]
    | Annotated[list[_Tokens], Field(min_length=1, max_length=MAX_PROMPTS)]
)


def _list_prompts(value: Any) -> Any:
    """Return the prompts as a list; a single text or list of token ids becomes a list of one."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError(
            f"expected a text, a list of token ids, or a list of either, found {shorten(value)}"
        )
    if value and type(value[0]) is int:
        value = [value]
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"expected at most {MAX_PROMPTS} prompts, got {len(value)}")
    if not value:
        raise ValueError("expected at least 1 prompt, got 0")
    for item in value:
        if not isinstance(item, str):
            _check_tokens(item)
    return value


def _check_tokens(value: Any) -> None:
    """Raise `ValueError` unless `value` is a non-empty list of token ids."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected texts or lists of token ids, found {shorten(value)} among them")
    if len(value) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"expected at most {MAX_TEXT_CHARACTERS} token ids, got {len(value)}")
    for item in value:
        if type(item) is not int or not 0 <= item <= MAX_INTEGER:
            raise ValueError(f"expected token ids, found {shorten(item)} among them")


class CompletionRequest(GenerationRequest):
    """A request to continue prompts, each a text or a list of token ids."""

    prompt: Annotated[
        tuple[Prompt, ...], BeforeValidator(_list_prompts, json_schema_input_type=_Prompts)
    ] = Field(description="A text, a list of token ids, or a list of either.")
    max_tokens: int = Field(
        default=16,
        ge=0,
        le=MAX_INTEGER,
        description="Most tokens to generate; 0 only together with echo.",
    )
    echo: bool = Field(default=False, description="Give the prompt back before what follows.")
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Return the log-probability of each token, and of this many likeliest ones.",
    )
    best_of: int | None = Field(
        default=None, ge=1, le=MAX_CHOICES, description="The same as n, if given."
    )

    @classmethod
    def list_neutral_values(cls) -> Neutral:
        """List the unsupported fields of OpenAI's completions and their accepted values."""
        return _NOT_SUPPORTED

    @model_validator(mode="after")
    def _check_together(self) -> "CompletionRequest":
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is 0 and echo is off, so there is nothing to answer")
        if self.best_of not in (None, self.n):
            raise ValueError(
                f"best_of ({self.best_of}) must be n ({self.n}): answers are not chosen among"
            )
        if self.echo and self.stream:
            raise ValueError("echo is not supported together with stream; leave one of them out")
        num_characters = sum(len(prompt) for prompt in self.prompt)
        if num_characters > MAX_TEXT_CHARACTERS:
            raise ValueError(
                f"expected prompts of at most {MAX_TEXT_CHARACTERS} characters or token ids in "
                f"all, got {num_characters}"
            )
        return self

    @property
    def max_new_tokens(self) -> int:
        """The limit on generated tokens."""
        return self.max_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        """Number of top tokens to return per position; None to return no log-probabilities."""
        return self.logprobs


def parse_completion_request(body: Any) -> CompletionRequest:
    """Validate the decoded JSON body of a completion; raises `InvalidRequestError`."""
    return parse_part(CompletionRequest, body)
