"""Schemas in `/openapi.json` of generated text, of classifications and of embeddings."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FinishReason = Literal["stop", "length"]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class Usage(_Answer):
    """Token counts of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Head(_Answer):
    id: str
    created: int = Field(description="Unix seconds.")
    model: str = Field(description="Id of the model that answered.")
    system_fingerprint: str | None = Field(description="Name of the model's exact content.")


class TokenLogprob(_Answer):
    """The log probability of a token."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChosenTokenLogprob(TokenLogprob):
    """The log probability of a token of the answer, and of the likeliest tokens in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(_Answer):
    """The log probabilities of the tokens of an answer."""

    content: list[ChosenTokenLogprob] | None
    refusal: None


class AssistantMessage(_Answer):
    """An answer; it can be sent back unchanged, as a turn of the conversation."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None


class ChatChoice(_Answer):
    """One of `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(_Head):
    """The answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(_Answer):
    """A part that is added to an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(_Answer):
    """A part that is added to one of `n` answers."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(_Head):
    """The data of an event of a streamed answer; the last event's data is `[DONE]`."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class CompletionLogprobs(_Answer):
    """The log probabilities of the tokens of a text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(_Answer):
    """One of the answers to the prompts; `finish_reason` is null until the answer ends."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class Completion(_Head):
    """Completions of prompts, or the data of an event of a stream; the last data is `[DONE]`."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ScoredLabel(_Answer):
    """A label, and its score."""

    label: str
    score: float = Field(description="From 0 to 1.")


class InputClassification(_Answer):
    """The labels of one input by descending score; or its value, if the model predicts one."""

    object: Literal["classification"]
    index: int = Field(description="The position of the input in the request.")
    labels: list[ScoredLabel] | None = None
    value: float | None = None


class InputUsage(_Answer):
    """Token counts of the inputs."""

    prompt_tokens: int
    total_tokens: int


class ClassificationList(_Answer):
    """The classifications of all inputs of a request."""

    object: Literal["list"]
    model: str = Field(description="Id of the model that answered.")
    data: list[InputClassification]
    usage: InputUsage


class Embedding(_Answer):
    """The vector of one input, of length one."""

    object: Literal["embedding"]
    index: int = Field(description="The position of the input in the request.")
    embedding: list[float] | str = Field(description="Numbers, or base64 of fp32.")


class EmbeddingList(_Answer):
    """The vectors of all inputs of a request."""

    object: Literal["list"]
    model: str = Field(description="Id of the model that answered.")
    data: list[Embedding]
    usage: InputUsage
