"""Answers of chat completions as OpenAI's clients expect them: plain dictionaries for JSON."""

from typing import Any

from serving.protocol import FinishReason


def build_usage(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, int]:
    """Build the token counts of one answer; the token that ended it is counted too."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def build_chat_completion(
    *,
    completion_id: str,
    created: int,
    model: str,
    system_fingerprint: str,
    text: str,
    finish_reason: FinishReason,
    usage: dict[str, int],
) -> dict[str, Any]:
    """Build a whole `chat.completion`; `created` is in Unix seconds."""
    return {
        "id": completion_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "system_fingerprint": system_fingerprint,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "logprobs": None,
                "finish_reason": finish_reason,
            }
        ],
        "usage": usage,
    }


def build_chat_chunk(
    *,
    completion_id: str,
    created: int,
    model: str,
    system_fingerprint: str,
    delta: dict[str, str],
    finish_reason: FinishReason | None = None,
) -> dict[str, Any]:
    """Build one `chat.completion.chunk`.

    The first chunk of an answer has the delta `{"role": "assistant", "content": ""}`, those that
    follow `{"content": ...}`, the last one `{}` and the finish reason.
    """
    return {
        "id": completion_id,
        "object": "chat.completion.chunk",
        "created": created,
        "model": model,
        "system_fingerprint": system_fingerprint,
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
    }


def build_usage_chunk(
    *,
    completion_id: str,
    created: int,
    model: str,
    system_fingerprint: str,
    usage: dict[str, int],
) -> dict[str, Any]:
    """Build the chunk without choices that `stream_options.include_usage` asks for, sent last."""
    return {
        "id": completion_id,
        "object": "chat.completion.chunk",
        "created": created,
        "model": model,
        "system_fingerprint": system_fingerprint,
        "choices": [],
        "usage": usage,
    }
