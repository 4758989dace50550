"""The body of `POST /v1/completions`."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from serving.protocol import (
    MAX_TEXT_CHARACTERS,
    MAX_TOP_LOGPROBS,
    GenerationRequest,
    Neutral,
    parse_request,
    shorten,
)

MAX_PROMPTS = 128

_NOT_SUPPORTED: Neutral = {
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "suffix": ("",),
}

Prompt = str | tuple[int, ...]


def _list_prompts(value: Any) -> Any:
    """Make a list of prompts of the one that a text, or a list of token ids, is."""
    if isinstance(value, str) or _is_tokens(value):
        return [value]
    if isinstance(value, list):
        for item in value:
            if not isinstance(item, str) and not _is_tokens(item):
                raise ValueError(
                    f"expected texts or lists of token ids, found {shorten(item)} among them"
                )
    return value


def _is_tokens(value: Any) -> bool:
    """Whether it is a list of token ids, of which there is at least one."""
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(type(item) is int and item >= 0 for item in value)


class CompletionRequest(GenerationRequest):
    """Prompts to go on with, each a text or token ids."""

    prompt: Annotated[tuple[Prompt, ...], BeforeValidator(_list_prompts)] = Field(
        min_length=1,
        max_length=MAX_PROMPTS,
        description="A text, a list of token ids, or a list of either.",
    )
    max_tokens: int = Field(
        default=16, ge=0, description="Most tokens to generate; 0 only together with echo."
    )
    echo: bool = Field(default=False, description="Give the prompt back before what follows.")
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Tell how likely each token was, and as many of the likeliest in its place.",
    )
    best_of: int | None = Field(default=None, ge=1, description="The same as n, if given.")

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
                f"the prompts have {num_characters} characters or tokens, at most "
                f"{MAX_TEXT_CHARACTERS} are taken"
            )
        return self

    @property
    def max_new_tokens(self) -> int:
        """The limit on generated tokens."""
        return self.max_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        """How many likeliest tokens to tell; None to tell nothing."""
        return self.logprobs


def parse_completion_request(body: Any) -> CompletionRequest:
    """Check the decoded JSON body of a completion; raises `InvalidRequestError`."""
    return parse_request(CompletionRequest, body, _NOT_SUPPORTED)
