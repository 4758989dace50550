"""Clients of the render processes for chat templates, for serving (async) and for training."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from templating.errors import (
    RenderProcessError,
    TemplateBrokenError,
    TemplateLimitError,
    TemplateRefusedError,
)
from templating.frames import LENGTH_BYTES, pack, unpack, unpack_length
from templating.render_fork_server import fork_renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A reply is mostly the text, whose length the process limits; JSON escapes make it longer.
_MAX_REPLY_BYTES = 1 << 30
_RECEIVE_BYTES = 1 << 18
_ERRORS: Mapping[str, type[TemplateLimitError] | type[TemplateRefusedError]] = {
    "limit": TemplateLimitError,
    "broken": TemplateBrokenError,
    "refused": TemplateRefusedError,
}


class RenderLimits(BaseModel):
    """The resource limits for rendering."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu_s: float = Field(
        default=2.0, gt=0, le=60, description="Seconds of processor time for one conversation."
    )
    memory_bytes: int = Field(
        default=256 << 20, ge=16 << 20, description="Bytes of memory, beyond those of Python."
    )
    mean_cpu_s: float = Field(
        default=0.02,
        gt=0,
        description="Seconds of processor time per conversation on average, of many in a row; "
        "`cpu_s` may be used in addition.",
    )
    timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Seconds on the clock for one conversation of many in a row, for a process "
        "that is stopped or swapped out.",
    )


class ChatTemplates(NamedTuple):
    """The templates of one model, and their variables in addition to messages and tools."""

    texts: tuple[str, ...]
    variables: Mapping[str, Any]

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase") -> "ChatTemplates":
        """Return the templates of a tokenizer; `texts` is empty if it has none."""
        own: Any = tokenizer.chat_template
        texts = tuple(own.values()) if isinstance(own, dict) else (own,) if own else ()
        return cls(texts, dict(tokenizer.special_tokens_map))


TemplateValue = str | int | float | bool


class RenderJob(TypedDict):
    """A conversation to render; `template` is the index of one of the model's templates.

    `turns` are the indices of messages to return as `RenderedTurn`s. Each needs two or three more
    renderings. `variables` are further template variables.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    template: int
    add_generation_prompt: bool
    with_blocks: bool
    turns: NotRequired[Sequence[int]]
    variables: NotRequired[Mapping[str, TemplateValue]]


Span = tuple[int, int]  # start and end character in a rendered text


class SharedText(NamedTuple):
    """A text: the first `num_shared` characters of another text, then `rest`."""

    num_shared: int
    rest: str


class RenderedTurn(NamedTuple):
    """One message: the prompt that serving builds for it, and the conversation up to its end.

    Both share a prefix with the text of the whole conversation. `start` is where the message begins
    in `whole`, None if it was not found; before `start`, `whole` may differ from the prompt.
    `blocks` are the generated parts of `whole` that end after `start`.
    """

    prompt: SharedText
    whole: SharedText
    start: int | None
    blocks: list[Span]


class Rendering(NamedTuple):
    """A rendered conversation; `blocks` are the spans of its generated parts."""

    text: str
    blocks: list[Span]
    cpu_s: float
    turns: list[RenderedTurn]


class _RenderProcess:
    """One process and the connection to it."""

    def __init__(self, templates: ChatTemplates, limits: RenderLimits) -> None:
        self._limits = limits
        self._cpu_limit_s: float | None = None  # of the current conversation
        self._started = 0.0
        self.connection, self._pidfd = fork_renderer()
        hello = {
            "templates": templates.texts,
            "variables": templates.variables,
            "memory_bytes": limits.memory_bytes,
        }
        try:
            self.connection.sendall(pack(hello))
        except OSError:
            raise self.explain_end() from None

    def pack_jobs(self, jobs: Sequence[RenderJob]) -> bytes:
        """Serialize conversations, each with its limit on processor time."""
        return pack([{**job, "cpu_s": self._limit_cpu(job)} for job in jobs])

    def record_start(self, job: RenderJob | None) -> None:
        """Record that the rendering of a conversation starts now, or with None that it is idle."""
        self._started = time.monotonic()
        self._cpu_limit_s = None if job is None else self._limit_cpu(job)

    def explain_end(self) -> TemplateLimitError | RenderProcessError:
        """Close an ended process, and return the error that explains why it ended."""
        self.close()
        limit_s = self._cpu_limit_s
        if limit_s is not None and time.monotonic() - self._started >= limit_s:
            return TemplateLimitError(f"took more than {limit_s:g} s of processor time")
        return RenderProcessError("the process that renders the chat template has ended")

    def _limit_cpu(self, job: RenderJob) -> float:
        num_more = _count_renderings(job) - 1
        return self._limits.cpu_s + self._limits.mean_cpu_s * num_more

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """End the process and close the connection to it."""
        if self._pidfd >= 0:
            self.kill()
            os.close(self._pidfd)
            self._pidfd = -1
            self.connection.close()


class AsyncRenderer:
    """Renders the conversations of one model, one at a time, in a separate process.

    A process that is killed, because a template exceeded its limits or a request was cancelled, is
    replaced for the next conversation. Use from one event loop only.
    """

    def __init__(self, templates: ChatTemplates, limits: RenderLimits) -> None:
        self._templates = templates
        self._limits = limits
        self._turn = asyncio.Lock()
        self._starting = threading.Lock()
        self._process: _RenderProcess | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the process and block until it runs; else the first conversation waits for it."""
        with self._starting:  # the thread of a cancelled request may still be starting it
            if self._process is None and not self._is_closed:
                process = _RenderProcess(self._templates, self._limits)
                if self._is_closed:  # closed meanwhile
                    process.close()
                else:
                    self._process = process

    async def render(self, job: RenderJob) -> Rendering:
        """Render a conversation; cancelling this call ends the process.

        Raises a `TemplatingError`.
        """
        async with self._turn:
            if self._process is None and not self._is_closed:
                await asyncio.to_thread(self.start)
            process = self._process
            if process is None or self._is_closed:
                self.close()
                raise RenderProcessError("the model is no longer loaded")
            try:
                found = _read_reply(await _send_job(process, job))
            except (OSError, EOFError):
                self._process = None
                raise process.explain_end() from None
            except BaseException:
                self._process = None
                process.close()
                raise
            if isinstance(found, TemplateLimitError):  # the process may still hold its memory
                self._process = None
                process.close()
        if isinstance(found, Rendering):
            return found
        raise found

    def close(self) -> None:
        """End the process and any rendering in progress."""
        self._is_closed = True
        if self._process is not None:
            self._process.kill()
            if not self._turn.locked():  # otherwise `render` notices the end and closes it
                self._process.close()
                self._process = None


class BatchRenderer:
    """Renders batches of conversations of one model in a separate process."""

    def __init__(self, templates: ChatTemplates, limits: RenderLimits) -> None:
        self._limits = limits
        self._process = _RenderProcess(templates, limits)
        self._process.connection.settimeout(limits.timeout_s)
        self._sent: deque[RenderJob] = deque()  # sent, result not yet received
        self._num_rendered = 0
        self._cpu_s = 0.0

    def send(self, jobs: Sequence[RenderJob]) -> None:
        """Send conversations to render; all results of earlier ones must have been received.

        Raises `RenderProcessError` if the process has ended.
        """
        try:
            self._process.connection.sendall(self._process.pack_jobs(jobs))
        except OSError:
            raise self._process.explain_end() from None
        self._sent.extend(jobs)
        self._record_start()

    def receive(self, num_jobs: int) -> Iterator[Rendering | TemplateRefusedError]:
        """Yield the results of the sent conversations, in order.

        Raises `TemplateLimitError` if a limit was exceeded, or `RenderProcessError` if the process
        ended.
        """
        for _ in range(num_jobs):
            try:
                length = unpack_length(self._read(LENGTH_BYTES))
                reply = self._read(_check_length(length))
            except (OSError, EOFError):
                raise self._process.explain_end() from None
            job = self._sent.popleft()
            self._record_start()
            found = _read_reply(reply)
            if isinstance(found, TemplateLimitError | RenderProcessError):
                raise found
            if isinstance(found, Rendering):
                self._check_pace(found.cpu_s, _count_renderings(job))
            yield found

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _record_start(self) -> None:
        self._process.record_start(self._sent[0] if self._sent else None)

    def _check_pace(self, cpu_s: float, num_renderings: int) -> None:
        self._cpu_s += cpu_s
        self._num_rendered += num_renderings
        allowed_s = self._limits.cpu_s + self._limits.mean_cpu_s * self._num_rendered
        if self._cpu_s > allowed_s:
            raise TemplateLimitError(
                f"took {self._cpu_s:.1f} s of processor time for {self._num_rendered} "
                f"conversations, more than {self._limits.mean_cpu_s:g} s each"
            )

    def _read(self, num_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < num_bytes:
            chunk = self._process.connection.recv(min(num_bytes - len(received), _RECEIVE_BYTES))
            if not chunk:
                raise EOFError
            received += chunk
        return bytes(received)


async def _send_job(process: _RenderProcess, job: RenderJob) -> bytes:
    loop = asyncio.get_running_loop()
    process.connection.setblocking(False)
    process.record_start(None)
    await loop.sock_sendall(process.connection, process.pack_jobs([job]))
    process.record_start(job)
    length = unpack_length(await _receive(loop, process.connection, LENGTH_BYTES))
    return await _receive(loop, process.connection, _check_length(length))


async def _receive(
    loop: asyncio.AbstractEventLoop, connection: socket.socket, num_bytes: int
) -> bytes:
    received = bytearray()
    while len(received) < num_bytes:
        chunk = await loop.sock_recv(connection, min(num_bytes - len(received), _RECEIVE_BYTES))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)


def _count_renderings(job: RenderJob) -> int:
    return 1 + 3 * len(job.get("turns", ()))


def _check_length(num_bytes: int) -> int:
    if num_bytes > _MAX_REPLY_BYTES:
        raise EOFError  # the render process never sends this much
    return num_bytes


def _read_reply(
    body: bytes,
) -> Rendering | TemplateRefusedError | TemplateLimitError | RenderProcessError:
    try:
        reply = unpack(body)
        if "error" in reply:
            return _ERRORS[reply["error"]](str(reply["reason"]))
        turns = [_read_turn(turn) for turn in reply["turns"]]
        blocks = _read_spans(reply["blocks"])
        return Rendering(str(reply["text"]), blocks, float(reply["cpu_s"]), turns)
    except (ValueError, LookupError, TypeError, RecursionError):
        return RenderProcessError("the process that renders the chat template sent nonsense")


def _read_turn(turn: Any) -> RenderedTurn:
    prompt, whole = (
        SharedText(int(turn[key][0]), str(turn[key][1])) for key in ("prompt", "whole")
    )
    start = None if turn["start"] is None else int(turn["start"])
    return RenderedTurn(prompt, whole, start, _read_spans(turn["blocks"]))


def _read_spans(spans: Any) -> list[Span]:
    return [(int(start), int(end)) for start, end in spans]
