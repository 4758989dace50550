"""Chunks of streamed responses in OpenAI's format, built from the pieces of a stream."""

from collections import Counter
from collections.abc import Sequence

from serving.openai.chat import ChatCompletionRequest
from serving.openai.completion import CompletionRequest
from serving.openai.responses import (
    AnswerHead,
    JsonObject,
    build_chat_logprobs,
    build_completion_choice,
    build_usage,
)
from serving.wire import Piece


class StreamUsage:
    """The token counts of a stream, taken from the last piece of each answer.

    Answers to the same prompt have the same number of prompt tokens, which is counted once.
    """

    def __init__(self, num_choices: int) -> None:
        self._num_choices = num_choices
        self._num_prompt_tokens: dict[int, int] = {}  # by the index of the prompt
        self._num_completion_tokens = 0

    def add(self, last: Piece) -> None:
        """Count the tokens of an answer, given its last piece."""
        self._num_prompt_tokens[last.choice_index // self._num_choices] = last.num_prompt_tokens
        self._num_completion_tokens += last.num_completion_tokens

    def build(self) -> dict[str, int]:
        """Build the token counts of the response."""
        return build_usage(sum(self._num_prompt_tokens.values()), self._num_completion_tokens)


class ChatChunks:
    """Builds each `chat.completion.chunk` of one streamed response."""

    def __init__(self, request: ChatCompletionRequest, head: AnswerHead) -> None:
        self._fields = head.describe("chat.completion.chunk")
        self._has_logprobs = request.logprobs
        self._wants_usage = request.wants_usage
        self._openings = [self._open(index) for index in range(request.n)]
        self.usage = StreamUsage(request.n)

    def build(self, pieces: Sequence[Piece]) -> list[JsonObject]:
        """Build the chunks of some pieces: one for each text and one for each finish reason.

        The first call also builds the opening chunk of each choice.
        """
        chunks, self._openings = self._openings, []
        for piece in pieces:
            index = piece.choice_index
            if piece.text or (self._has_logprobs and piece.tokens):
                logprobs = build_chat_logprobs(piece) if self._has_logprobs else None
                chunks.append(self._build(index, {"content": piece.text}, logprobs, None))
            if piece.finish_reason is not None:
                self.usage.add(piece)
                chunks.append(self._build(index, {}, None, piece.finish_reason))
        return chunks

    def finish(self) -> list[JsonObject]:
        """Build the chunk with the token counts, if the request asks for it."""
        return _build_usage_chunks(self._fields, self.usage, is_wanted=self._wants_usage)

    def _open(self, index: int) -> JsonObject:
        return self._build(index, {"role": "assistant", "content": ""}, None, None)

    def _build(
        self,
        index: int,
        delta: dict[str, str],
        logprobs: JsonObject | None,
        finish_reason: str | None,
    ) -> JsonObject:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return {**self._fields, "choices": [choice]}


class CompletionChunks:
    """Builds each streamed `text_completion` of one response."""

    def __init__(self, request: CompletionRequest, head: AnswerHead) -> None:
        self._fields = head.describe("text_completion")
        self._has_logprobs = request.logprobs is not None
        self._wants_usage = request.wants_usage
        self._offsets: Counter[int] = Counter()  # characters so far, by the index of the choice
        self.usage = StreamUsage(request.n)

    def build(self, pieces: Sequence[Piece]) -> list[JsonObject]:
        """Build one chunk for each piece."""
        chunks = []
        for piece in pieces:
            if piece.finish_reason is not None:
                self.usage.add(piece)
            offset = self._offsets[piece.choice_index]
            choice = build_completion_choice(piece, offset, has_logprobs=self._has_logprobs)
            chunks.append({**self._fields, "choices": [choice]})
            self._offsets[piece.choice_index] = offset + len(piece.text)
        return chunks

    def finish(self) -> list[JsonObject]:
        """Build the chunk with the token counts, if the request asks for it."""
        return _build_usage_chunks(self._fields, self.usage, is_wanted=self._wants_usage)


def _build_usage_chunks(
    fields: JsonObject, usage: StreamUsage, *, is_wanted: bool
) -> list[JsonObject]:
    """Build the last chunk, without choices, that `stream_options.include_usage` requests."""
    return [{**fields, "choices": [], "usage": usage.build()}] if is_wanted else []
