"""Renders chat templates, one process for each model: `python -m templating.render_process`.

That process is a fork server. It imports transformers once (0.7 s, 60 MB) and forks for every
connection that it receives, so that a process that was killed is replaced within milliseconds.
"""

import gc
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from templating.frames import LENGTH_BYTES, pack, unpack, unpack_length

_OUTPUT_CHARACTERS, _OUTPUT_PER_INPUT_BYTE = 1_000_000, 8
_MAX_READ_SHARE = 0.25  # of the memory: it holds what is read as bytes, characters and objects
_CHUNK_BYTES = 1 << 18
_MAX_REASON_CHARACTERS = 300

Span = tuple[int, int]  # characters from and to, of a rendered text
# Raised for every conversation alike.
_BROKEN = (jinja2.TemplateSyntaxError, jinja2.exceptions.SecurityError)


def serve_forks(control: socket.socket) -> None:
    """Fork for every connection that arrives on `control`, until its other end is closed.

    Answers each with a file descriptor of the new process (a pidfd).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client decides when to end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended processes are reaped by the kernel
    gc.collect()
    gc.freeze()  # a collection would copy the memory that all forks share
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _run(descriptors[0])
        os.close(descriptors[0])
        process = os.pidfd_open(pid)
        socket.send_fds(control, [b"\0"], [process])
        os.close(process)


def _run(descriptor: int) -> None:
    """Render for the client at the other end; never returns."""
    try:
        with socket.socket(fileno=descriptor) as connection:
            _serve_client(connection)
    except (EOFError, ConnectionError):  # the client has gone
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
            # Processor time, so that a busy machine stops no template. The signal's default action
            # ends the process, whatever it is doing, also when the client has gone.
            signal.setitimer(signal.ITIMER_PROF, job["cpu_s"])
            reply = _render(job, hello, max_characters)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(pack(reply))
            del reply
        del jobs


def _read_jobs(connection: socket.socket, num_bytes: int, memory_bytes: int) -> Any:
    """Read the conversations of one frame; raises `MemoryError` once it has read too many."""
    if num_bytes > memory_bytes * _MAX_READ_SHARE:
        _skip(connection, num_bytes)
        raise MemoryError
    return unpack(_read(connection, num_bytes))


def _limit_memory(num_bytes: int) -> None:
    """Allow so many bytes beyond what the process has mapped already."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    limit = mapped + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _render(job: dict[str, Any], hello: dict[str, Any], max_characters: int) -> dict[str, Any]:
    started = time.process_time()
    try:
        text, blocks = _render_text(
            job,
            hello,
            job["messages"],
            add_generation_prompt=job["add_generation_prompt"],
            with_blocks=job["with_blocks"],
        )
        if len(text) > max_characters:
            return {
                "error": "limit",
                "reason": f"wrote {len(text):,} characters, more than {max_characters:,}",
            }
        answers = _find_answers(job, hello, text, blocks)
    except MemoryError:
        return _describe_memory(hello)
    except _BROKEN as exc:
        return {"error": "broken", "reason": _describe(exc)}
    except Exception as exc:  # noqa: BLE001 - whatever the template raises is the template's
        return {"error": "refused", "reason": _describe(exc)}
    return {
        "text": text,
        "blocks": blocks,
        "answers": answers,
        "cpu_s": time.process_time() - started,
    }


def _render_text(
    job: dict[str, Any],
    hello: dict[str, Any],
    messages: Sequence[dict[str, Any]],
    *,
    add_generation_prompt: bool,
    with_blocks: bool = False,
) -> tuple[str, Sequence[Span]]:
    """Render messages with the tools of a conversation; returns the text and its marked blocks."""
    texts, blocks = render_jinja_template(
        [messages],
        tools=job["tools"],
        chat_template=hello["templates"][job["template"]],
        return_assistant_tokens_mask=with_blocks,
        add_generation_prompt=add_generation_prompt,
        **hello["variables"],
    )
    return str(texts[0]), blocks[0] if blocks else []


def _find_answers(
    job: dict[str, Any], hello: dict[str, Any], text: str, blocks: Sequence[Span]
) -> list[Span] | None:
    """Find what each of the wanted messages adds to the text after the generation prompt.

    Returns what `Rendering.answers` is. Only lengths are kept: the renderings of all beginnings of
    a conversation are together much larger than the conversation.
    """
    messages, wanted = job["messages"], job.get("answers", ())
    if not wanted or _is_each_a_block(messages, wanted, text, blocks):
        return None
    spans: list[Span] = []
    for place in wanted:
        before, _ = _render_text(job, hello, messages[:place], add_generation_prompt=True)
        after, _ = _render_text(job, hello, messages[: place + 1], add_generation_prompt=False)
        if not (text.startswith(after) and after.startswith(before)):
            break
        spans.append((len(before), len(after)))
    return spans


def _is_each_a_block(
    messages: Sequence[dict[str, Any]], wanted: Sequence[int], text: str, blocks: Sequence[Span]
) -> bool:
    return len(blocks) == len(wanted) and all(
        (messages[place].get("content") or "").strip() in text[start:end]
        for place, (start, end) in zip(wanted, blocks, strict=True)
    )


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
    serve_forks(socket.socket(fileno=int(sys.argv[1])))
