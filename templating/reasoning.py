"""The reasoning of an assistant's message, put into the key that a chat template reads."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""The key's names at different vendors: DeepSeek and Qwen, GPT-OSS and LFM, OpenRouter."""
_INLINE = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


def arrange_reasoning(message: Mapping[str, Any], template: str) -> Mapping[str, Any]:
    """Put an assistant's reasoning into the key that a template reads, or else into the content.

    The input may have it in any of `REASONING_KEYS`, or before the content between `<think>` and
    `</think>`.
    """
    reasoning = read_reasoning(message)
    if reasoning is None:
        return message
    bare = remove_reasoning(message)
    if (read_key := _find_key(template)) is not None:
        return {**bare, read_key: reasoning}
    if not any(key in message for key in REASONING_KEYS):
        return message
    return {**bare, "content": f"<think>\n{reasoning}\n</think>\n\n{bare.get('content') or ''}"}


@lru_cache(maxsize=64)  # a template may have a million characters
def _find_key(template: str) -> str | None:
    """Return the message key from which a template reads reasoning, or None."""
    for key in REASONING_KEYS:
        if re.search(rf"""(\.|\[['"]|get\(['"]){key}\b""", template):
            return key
    return None


def read_reasoning(message: Mapping[str, Any]) -> str | None:
    """Return an assistant's reasoning, stripped; None if the message has none."""
    if message["role"] != "assistant":
        return None
    found = next((message[key] for key in REASONING_KEYS if key in message), None)
    if not isinstance(found, str):
        content = message.get("content")
        inline = _INLINE.match(content) if isinstance(content, str) else None
        found = inline.group(1) if inline else ""
    return found.strip() or None


def remove_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without its reasoning."""
    bare = {key: value for key, value in message.items() if key not in REASONING_KEYS}
    content = message.get("content")
    if len(bare) == len(message) and isinstance(content, str) and message["role"] == "assistant":
        bare["content"] = _INLINE.sub("", content, count=1) if _INLINE.match(content) else content
    return bare
