"""Responses in OpenAI's format, as plain dictionaries for JSON.

Choices and pieces are the dictionaries that a generator yields: `index`, `text`, `finish_reason`,
`num_prompt_tokens`, `num_completion_tokens` and `tokens`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

Choice = Mapping[str, Any]


@dataclass(frozen=True)
class AnswerHead:
    """The fields that all parts of one response share; `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def build(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Build a response object of type `kind` from the shared fields and choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "choices": choices,
        }


def build_usage(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, int]:
    """Build the token counts of one response; completion tokens include the end token."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def build_chat_completion(
    head: AnswerHead, choices: Sequence[Choice], usage: dict[str, int], *, has_logprobs: bool
) -> dict[str, Any]:
    """Build a complete `chat.completion`."""
    built = [
        {
            "index": choice["index"],
            "message": {"role": "assistant", "content": choice["text"], "refusal": None},
            "logprobs": _build_chat_logprobs(choice) if has_logprobs else None,
            "finish_reason": choice["finish_reason"],
        }
        for choice in choices
    ]
    return {**head.build("chat.completion", built), "usage": usage}


def build_chat_opening(head: AnswerHead, index: int) -> dict[str, Any]:
    """Build the first `chat.completion.chunk` of one choice."""
    delta = {"role": "assistant", "content": ""}
    return _build_chat_chunk(head, index, delta, None, None)


def build_chat_chunks(
    head: AnswerHead, piece: Choice, *, has_logprobs: bool
) -> list[dict[str, Any]]:
    """Build the chunks of one piece: one for its text and one for its finish reason, if present."""
    index, chunks = piece["index"], []
    if piece["text"] or (has_logprobs and piece["tokens"]):
        logprobs = _build_chat_logprobs(piece) if has_logprobs else None
        chunks.append(_build_chat_chunk(head, index, {"content": piece["text"]}, logprobs, None))
    if piece["finish_reason"] is not None:
        chunks.append(_build_chat_chunk(head, index, {}, None, piece["finish_reason"]))
    return chunks


def build_completion(
    head: AnswerHead, choices: Sequence[Choice], usage: dict[str, int], *, has_logprobs: bool
) -> dict[str, Any]:
    """Build a complete `text_completion`."""
    built = [_build_completion_choice(choice, 0, has_logprobs=has_logprobs) for choice in choices]
    return {**head.build("text_completion", built), "usage": usage}


def build_completion_chunk(
    head: AnswerHead, piece: Choice, offset: int, *, has_logprobs: bool
) -> dict[str, Any]:
    """Build the `text_completion` of a piece, which begins at character `offset` of the answer."""
    choice = _build_completion_choice(piece, offset, has_logprobs=has_logprobs)
    return head.build("text_completion", [choice])


def build_usage_chunk(head: AnswerHead, kind: str, usage: dict[str, int]) -> dict[str, Any]:
    """Build the last chunk, without choices, that `stream_options.include_usage` requests."""
    return {**head.build(kind, []), "usage": usage}


def _build_chat_chunk(
    head: AnswerHead,
    index: int,
    delta: dict[str, str],
    logprobs: dict[str, Any] | None,
    finish_reason: str | None,
) -> dict[str, Any]:
    choice = {
        "index": index,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }
    return head.build("chat.completion.chunk", [choice])


def _build_chat_logprobs(choice: Choice) -> dict[str, Any]:
    content = [
        {
            **_build_token(told["token"], told["logprob"]),
            "top_logprobs": [_build_token(token, logprob) for token, logprob in told["top"]],
        }
        for told in choice["tokens"]
        if not told["is_end"]
    ]
    return {"content": content, "refusal": None}


def _build_token(token: Mapping[str, Any], logprob: float) -> dict[str, Any]:
    utf8 = token["utf8"]
    return {
        "token": token["text"],
        "logprob": logprob,
        "bytes": None if utf8 is None else list(utf8),
    }


def _build_completion_choice(choice: Choice, offset: int, *, has_logprobs: bool) -> dict[str, Any]:
    return {
        "index": choice["index"],
        "text": choice["text"],
        "logprobs": _build_completion_logprobs(choice, offset) if has_logprobs else None,
        "finish_reason": choice["finish_reason"],
    }


def _build_completion_logprobs(choice: Choice, offset: int) -> dict[str, Any]:
    told_tokens = choice["tokens"]  # includes the end token, which evaluation harnesses rely on
    texts = [told["token"]["text"] for told in told_tokens]
    return {
        "tokens": texts,
        "token_logprobs": [told["logprob"] for told in told_tokens],
        "top_logprobs": [
            None
            if told["logprob"] is None
            else {token["text"]: logprob for token, logprob in reversed(told["top"])}
            for told in told_tokens
        ],
        # Approximate for special tokens and for tokens that are parts of characters.
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=offset)) if texts else [],
    }
