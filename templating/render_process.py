"""Fork server for the processes that render chat templates: `python -m templating.render_process`.

It imports transformers once (0.7 s, 60 MB) and forks a process for every connection that it
receives, one per model, so that a killed process is replaced within milliseconds.
"""

import json
import os
import resource
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from system.fork_server import serve_forks
from templating.frames import LENGTH_BYTES, pack, unpack, unpack_length

_OUTPUT_CHARACTERS, _OUTPUT_PER_INPUT_BYTE = 1_000_000, 8
_MAX_READ_SHARE = 0.25  # of the memory, which holds the input as bytes, characters and objects
_CHUNK_BYTES = 1 << 18
_MAX_REASON_CHARACTERS = 300

Span = tuple[int, int]  # start and end character in a rendered text
_PROBE = "probe of content"
# Raised for every conversation.
_BROKEN = (jinja2.TemplateSyntaxError, jinja2.exceptions.SecurityError)


class _TooLongError(Exception):
    """The output of the template exceeds the limit."""


def _run(descriptor: int) -> NoReturn:
    """Render for the client at the other end of a connection."""
    try:
        with socket.socket(fileno=descriptor) as connection:
            _serve_client(connection)
    except (EOFError, ConnectionError):  # the client has closed the connection
        pass
    finally:
        os._exit(0)


def _serve_client(connection: socket.socket) -> None:
    hello = unpack(_read(connection, _read_length(connection)))
    _limit_memory(hello["memory_bytes"])
    while True:
        num_bytes = _read_length(connection)
        try:
            jobs = _read_jobs(connection, num_bytes, hello["memory_bytes"])
        except MemoryError:
            connection.sendall(pack(_describe_memory(hello)))
            continue
        max_characters = _OUTPUT_CHARACTERS + _OUTPUT_PER_INPUT_BYTE * num_bytes
        for job in jobs:
            # The limit is on processor time, so that it does not depend on the load of the machine.
            # The signal's default action ends the process, even if the client has disconnected.
            signal.setitimer(signal.ITIMER_PROF, job["cpu_s"])
            reply = _render(job, hello, max_characters)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(pack(reply))
            del reply
        del jobs


def _read_jobs(connection: socket.socket, num_bytes: int, memory_bytes: int) -> Any:
    """Read the conversations of one frame; raise `MemoryError` for a frame that is too large."""
    if num_bytes > memory_bytes * _MAX_READ_SHARE:
        _skip(connection, num_bytes)
        raise MemoryError
    return unpack(_read(connection, num_bytes))


def _limit_memory(num_bytes: int) -> None:
    """Limit the address space to its current size plus `num_bytes`; disable core dumps."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    limit = mapped + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _render(job: dict[str, Any], hello: dict[str, Any], max_characters: int) -> dict[str, Any]:
    started = time.process_time()
    try:
        reply = _render_either_way(job, hello, max_characters)
    except MemoryError:
        return _describe_memory(hello)
    except _TooLongError as exc:
        return {"error": "limit", "reason": str(exc)}
    except _BROKEN as exc:
        return {"error": "broken", "reason": _describe(exc)}
    except Exception as exc:  # noqa: BLE001 - a template may raise anything
        return {"error": "refused", "reason": _describe(exc)}
    return {**reply, "cpu_s": time.process_time() - started}


def _render_either_way(
    job: dict[str, Any], hello: dict[str, Any], max_characters: int
) -> dict[str, Any]:
    """Render a conversation; if that fails, retry with tool call arguments as JSON text."""
    try:
        return _render_conversation(job, hello, max_characters)
    except Exception as exc:
        messages = [_write_arguments(message) for message in job["messages"]]
        if isinstance(exc, (MemoryError, _TooLongError, *_BROKEN)) or messages == job["messages"]:
            raise
        try:
            return _render_conversation({**job, "messages": messages}, hello, max_characters)
        except Exception:  # noqa: BLE001 - only the first error is about the client's input
            raise exc from None


def _write_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with tool call arguments as JSON text, as DeepSeek's templates expect."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = []
    for call in calls:
        function = call.get("function", {})
        if isinstance(function.get("arguments"), dict):
            text = json.dumps(function["arguments"], ensure_ascii=False)
            call = {**call, "function": {**function, "arguments": text}}
        written.append(call)
    return {**message, "tool_calls": written}


def _render_conversation(
    job: dict[str, Any], hello: dict[str, Any], max_characters: int
) -> dict[str, Any]:
    text, blocks = _render_text(
        job,
        hello,
        job["messages"],
        add_generation_prompt=job["add_generation_prompt"],
        with_blocks=job["with_blocks"],
    )
    _check_length(text, max_characters)
    turns: list[dict[str, Any]] = []
    num_characters = 0
    for place in job.get("turns", ()):
        turn = _render_turn(job, hello, place, text, blocks)
        num_characters += len(turn["prompt"][1]) + len(turn["whole"][1])
        if num_characters > max_characters:
            raise ValueError(
                f"it rewrites earlier turns, and the prompts of all turns have more than "
                f"{max_characters:,} characters; set learned_turns to 'last', or split the chat"
            )
        turns.append(turn)
    return {"text": text, "blocks": blocks, "turns": turns}


def _check_length(text: str, max_characters: int) -> None:
    if len(text) > max_characters:
        raise _TooLongError(f"wrote {len(text):,} characters, more than {max_characters:,}")


def _requires_parts(hello: dict[str, Any], template: str) -> bool:
    """Return whether a template writes content only if it is a list of parts, not text.

    Templates of vision models do. The test renders one message, once per template.
    """
    known = hello.setdefault("takes_parts", {})
    if template not in known:
        known[template] = not _writes(hello, template, _PROBE) and _writes(
            hello, template, _make_parts(_PROBE)
        )
    return bool(known[template])


def _writes(hello: dict[str, Any], template: str, content: Any) -> bool:
    message = {"role": "user", "content": content}
    try:
        texts, _ = render_jinja_template(
            [[message]], chat_template=template, add_generation_prompt=True, **hello["variables"]
        )
    except Exception:  # noqa: BLE001 - a template may raise anything
        return False
    return _PROBE in texts[0]


def _make_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _render_text(
    job: dict[str, Any],
    hello: dict[str, Any],
    messages: Sequence[dict[str, Any]],
    *,
    add_generation_prompt: bool,
    with_blocks: bool = False,
) -> tuple[str, Sequence[Span]]:
    """Render messages with the tools of a conversation; return the text and its marked blocks."""
    template = hello["templates"][job["template"]]
    if _requires_parts(hello, template):
        messages = [
            {key: _make_parts(value) if key == "content" else value for key, value in one.items()}
            for one in messages
        ]
    texts, blocks = render_jinja_template(
        [messages],
        tools=job["tools"],
        chat_template=template,
        return_assistant_tokens_mask=with_blocks,
        add_generation_prompt=add_generation_prompt,
        **hello["variables"],
        **job.get("variables", {}),
    )
    return str(texts[0]), blocks[0] if blocks else []


def _render_turn(
    job: dict[str, Any],
    hello: dict[str, Any],
    place: int,
    text: str,
    blocks: Sequence[Span],
) -> dict[str, Any]:
    """Render the prompt before one message, and the conversation up to the end of that message.

    Both are returned relative to the text of the whole conversation (`_describe_shared`), because
    all turns together are much larger than that text.
    """
    messages = job["messages"]
    prompt, _ = _render_text(job, hello, messages[:place], add_generation_prompt=True)
    whole = text
    if place + 1 < len(messages):
        whole, blocks = _render_text(
            job,
            hello,
            messages[: place + 1],
            add_generation_prompt=False,
            with_blocks=job["with_blocks"],
        )
    if whole.startswith(prompt):
        start: int | None = len(prompt)
    else:
        start = _find_answer(job, hello, place, prompt, whole)
    return {
        "prompt": _describe_shared(prompt, text),
        "whole": _describe_shared(whole, text),
        "start": start,
        "blocks": [] if start is None else [span for span in blocks if span[1] > start],
    }


def _find_answer(
    job: dict[str, Any], hello: dict[str, Any], place: int, prompt: str, whole: str
) -> int | None:
    """Return where the answer begins in a text that does not begin with its prompt, or None.

    If the text shares the rendered history with the prompt, the answer begins where the text first
    differs from the prompt. The content may start a few characters before, if the prompt continues
    with the same characters, such as the `<` of a tag. Otherwise the answer begins at the last
    occurrence of its content.
    """
    message = job["messages"][place]
    content = message.get("content")
    content = content.strip() if isinstance(content, str) else ""
    history, _ = _render_text(job, hello, job["messages"][:place], add_generation_prompt=False)
    departure, num_history = count_shared(whole, prompt), count_shared(history, prompt)
    if departure >= num_history:
        first = max(num_history, departure - len(content) + 1)
        found = whole.find(content, first, departure + len(content) - 1) if content else -1
        return departure if found < 0 else found
    found = whole.rfind(content) if content else -1
    return None if found < 0 or message.get("tool_calls") else found


def _describe_shared(text: str, whole: str) -> tuple[int, str]:
    """Return the length of the prefix that a text shares with another, and the rest of the text."""
    num_shared = count_shared(text, whole)
    return num_shared, text[num_shared:]


def count_shared(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while low + 1 < high:  # the common prefix has at least `low` and fewer than `high` characters
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _describe_memory(hello: dict[str, Any]) -> dict[str, Any]:
    megabytes = hello["memory_bytes"] >> 20
    return {"error": "limit", "reason": f"needed more than {megabytes} MiB of memory"}


def _describe(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__)[:_MAX_REASON_CHARACTERS]


def _read_length(connection: socket.socket) -> int:
    return unpack_length(_read(connection, LENGTH_BYTES))


def _read(connection: socket.socket, num_bytes: int) -> bytearray:
    received = bytearray(num_bytes)
    view, place = memoryview(received), 0
    while place < num_bytes:
        num_more = connection.recv_into(view[place:])
        if not num_more:
            raise EOFError
        place += num_more
    return received


def _skip(connection: socket.socket, num_bytes: int) -> None:
    while num_bytes:
        chunk = connection.recv(min(num_bytes, _CHUNK_BYTES))
        if not chunk:
            raise EOFError
        num_bytes -= len(chunk)


if __name__ == "__main__":
    serve_forks(_run)
