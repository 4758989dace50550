"""Responses in OpenAI's format, as plain dictionaries for JSON; `chunks` builds streamed ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from serving.wire import Piece, TokenText

JsonObject = dict[str, Any]
"""An object of a response; OpenAI's specification defines its fields."""


@dataclass(frozen=True)
class AnswerHead:
    """The fields that all parts of one response share; `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def describe(self, kind: str) -> JsonObject:
        """Return the shared fields of a response object of type `kind`; `choices` follow them."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


def build_usage(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, int]:
    """Build the token counts of one response; completion tokens include the end token."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def build_chat_completion(
    head: AnswerHead, choices: Sequence[Piece], usage: dict[str, int], *, has_logprobs: bool
) -> JsonObject:
    """Build a complete `chat.completion`."""
    built = [
        {
            "index": choice.choice_index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": build_chat_logprobs(choice) if has_logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        for choice in choices
    ]
    return {**head.describe("chat.completion"), "choices": built, "usage": usage}


def build_completion(
    head: AnswerHead, choices: Sequence[Piece], usage: dict[str, int], *, has_logprobs: bool
) -> JsonObject:
    """Build a complete `text_completion`."""
    built = [build_completion_choice(choice, 0, has_logprobs=has_logprobs) for choice in choices]
    return {**head.describe("text_completion"), "choices": built, "usage": usage}


def build_chat_logprobs(piece: Piece) -> JsonObject:
    """Build the log-probabilities of a chat's tokens, without the token that ended the answer."""
    content = [
        {
            **_build_token(found.token, found.logprob),
            "top_logprobs": [_build_token(token, logprob) for token, logprob in found.top],
        }
        for found in piece.tokens
        if not found.is_end
    ]
    return {"content": content, "refusal": None}


def build_completion_choice(piece: Piece, offset: int, *, has_logprobs: bool) -> JsonObject:
    """Build a choice of a `text_completion`; it begins at character `offset` of the answer."""
    return {
        "index": piece.choice_index,
        "text": piece.text,
        "logprobs": _build_completion_logprobs(piece, offset) if has_logprobs else None,
        "finish_reason": piece.finish_reason,
    }


def _build_token(token: TokenText, logprob: float | None) -> JsonObject:
    return {
        "token": token.text,
        "logprob": logprob,
        "bytes": None if token.utf8 is None else list(token.utf8),
    }


def _build_completion_logprobs(piece: Piece, offset: int) -> JsonObject:
    tokens = piece.tokens  # includes the end token, which evaluation harnesses rely on
    texts = [found.token.text for found in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [found.logprob for found in tokens],
        "top_logprobs": [
            None
            if found.logprob is None
            else {token.text: logprob for token, logprob in reversed(found.top)}
            for found in tokens
        ],
        # Approximate for special tokens and for tokens that are parts of characters.
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=offset)) if texts else [],
    }
