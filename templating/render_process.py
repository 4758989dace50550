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
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from templating.frames import LENGTH_BYTES, pack, unpack, unpack_length

_OUTPUT_CHARACTERS, _OUTPUT_PER_INPUT_BYTE = 1_000_000, 8
_MAX_REASON_CHARACTERS = 300
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
    hello = unpack(_read_frame(connection))
    _limit_memory(hello["memory_bytes"])
    while True:
        frame = _read_frame(connection)
        max_characters = _OUTPUT_CHARACTERS + _OUTPUT_PER_INPUT_BYTE * len(frame)
        for job in unpack(frame):
            # Processor time, so that a busy machine stops no template. The signal's default action
            # ends the process, whatever it is doing, also when the client has gone.
            signal.setitimer(signal.ITIMER_PROF, hello["cpu_s"])
            reply = _render(job, hello, max_characters)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(pack(reply))
            del reply


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
        texts, blocks = render_jinja_template(
            [job["messages"]],
            tools=job["tools"],
            chat_template=hello["templates"][job["template"]],
            return_assistant_tokens_mask=job["with_blocks"],
            add_generation_prompt=job["add_generation_prompt"],
            **hello["variables"],
        )
        text = str(texts[0])
        if len(text) > max_characters:
            return {
                "error": "limit",
                "reason": f"wrote {len(text):,} characters, more than {max_characters:,}",
            }
    except MemoryError:
        megabytes = hello["memory_bytes"] >> 20
        return {"error": "limit", "reason": f"needed more than {megabytes} MiB of memory"}
    except _BROKEN as exc:
        return {"error": "broken", "reason": _describe(exc)}
    except Exception as exc:  # noqa: BLE001 - whatever the template raises is the template's
        return {"error": "refused", "reason": _describe(exc)}
    return {
        "text": text,
        "blocks": blocks[0] if blocks else [],
        "cpu_s": time.process_time() - started,
    }


def _describe(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__)[:_MAX_REASON_CHARACTERS]


def _read_frame(connection: socket.socket) -> bytes:
    return _read(connection, unpack_length(_read(connection, LENGTH_BYTES)))


def _read(connection: socket.socket, num_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < num_bytes:
        chunk = connection.recv(min(num_bytes - len(received), 1 << 20))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)


if __name__ == "__main__":
    serve_forks(socket.socket(fileno=int(sys.argv[1])))
