"""Flow control of large bodies: they are received and sent only as fast as they are consumed.

Serve's proxy reads a request body as fast as the network delivers it, and a replica fetches it from
the proxy as fast as it can; neither waits for the application. Responses have the same problem:
what a replica sends is buffered in its memory until the client has received it. So a large upload
to a slow disk, or a large download by a slow client, would be held in memory as a whole. Here each
receiver reports how many bytes it has consumed, in its own messages among those of the request, and
the sender stays at most one window ahead: credit-based flow control, as in HTTP/2.

The proxy's half is middleware that Serve loads through an environment variable
(`apps.middleware.proxy`, set by `tuneserve run`); it marks the requests that it controls. Without
it, requests work without flow control.
"""

import asyncio
import re
from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.errors import error_body

WINDOW_BYTES = 1 << 19
_STEP_BYTES = 1 << 17  # consumed between two reports
_HEADER = b"x-tuneserve-window"
_USED = "tuneserve.used"
_DELIVERED = "tuneserve.taken"
# Matched as whole paths: another application behind the same proxy would never send reports.
_LARGE_BODIES = re.compile(r"/v1/(files|models/[^/]+)/?|/ui/gradio_api/upload")
_LARGE_ANSWERS = re.compile(
    r"/v1/(files/[^/]+/content|models/[^/]+/archive|fine_tuning/jobs/[^/]+/logs)/?"
    r"|/ui/models/[^/]+/archive"
)


class WindowedReading:
    """Proxy middleware that reads a body at most one window ahead of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request; intercept the application's reports about its body."""
        if not has_large_body(scope):
            await self.app(scope, receive, send)
            return
        num_read = num_used = 0
        has_used = asyncio.Event()
        is_answered = False

        async def receive_in_window() -> Message:
            nonlocal num_read
            while num_read - num_used > WINDOW_BYTES:
                has_used.clear()
                await has_used.wait()
            message = await receive()
            num_read += len(message.get("body", b""))
            return message

        async def send_response(message: Message) -> None:
            nonlocal num_used, is_answered
            if message["type"] == _USED:
                num_used = message["bytes"]
                has_used.set()
            else:
                is_answered = True
                await send(message)

        await self.app(_mark(scope), receive_in_window, send_response)
        if not is_answered:  # the replica ended; Serve mistook the reports for a response
            message = "the process that took the body has ended; another takes its place, try again"
            await JSONResponse(error_body(503, message), 503)(scope, receive, send)


class ConsumptionReporting:
    """Application middleware that reports the consumed bytes of a body to the waiting proxy."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, with reports among the messages of its response."""
        if not has_large_body(scope) or not _is_marked(scope):
            await self.app(scope, receive, send)
            return
        num_used = num_reported = 0

        async def receive_and_report() -> Message:
            nonlocal num_used, num_reported
            message = await receive()
            num_used += len(message.get("body", b""))
            if num_used - num_reported >= _STEP_BYTES:
                num_reported = num_used
                await send({"type": _USED, "bytes": num_used})
            return message

        await self.app(scope, receive_and_report, send)


class DeliveryReporting:
    """Proxy middleware that reports to the application how many bytes the client has received."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, with reports among the messages of its body."""
        if not _matches(scope, _LARGE_ANSWERS):
            await self.app(scope, receive, send)
            return
        num_delivered = num_reported = 0
        has_delivered = asyncio.Event()
        reading: asyncio.Future[Message] | None = None

        async def send_and_count(message: Message) -> None:
            nonlocal num_delivered
            await send(message)
            num_delivered += len(message.get("body", b""))
            if num_delivered - num_reported >= _STEP_BYTES:
                has_delivered.set()

        async def receive_or_report() -> Message:
            nonlocal num_reported, reading
            reading = reading or asyncio.ensure_future(receive())
            reporting = asyncio.ensure_future(has_delivered.wait())
            try:
                await asyncio.wait((reading, reporting), return_when=asyncio.FIRST_COMPLETED)
            finally:
                reporting.cancel()
            if reading.done():
                message, reading = reading.result(), None
                return message
            has_delivered.clear()
            num_reported = num_delivered
            return {"type": _DELIVERED, "bytes": num_delivered}

        try:
            await self.app(_mark(scope), receive_or_report, send_and_count)
        finally:
            if reading is not None:
                reading.cancel()


class WindowedSending:
    """Application middleware that sends a response at most one window ahead of the client."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request; intercept the proxy's reports about the response."""
        if not _matches(scope, _LARGE_ANSWERS) or not _is_marked(scope):
            await self.app(scope, receive, send)
            return
        answer = _WindowedAnswer(send)
        messages: asyncio.Queue[Message] = asyncio.Queue()
        listening = asyncio.create_task(_listen(receive, answer.record_delivered, messages))

        async def receive_queued() -> Message:
            message = await messages.get()
            if message["type"] == "http.disconnect":
                messages.put_nowait(message)  # every later call returns it again
            return message

        try:
            await self.app(scope, receive_queued, answer.send)
        finally:
            listening.cancel()


class _WindowedAnswer:
    """A response and how much of it the client has received; dropped after a disconnect."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._num_sent = self._num_delivered = 0
        self._is_dropped = False
        self._has_delivered = asyncio.Event()

    def record_delivered(self, num_bytes: int | None) -> None:
        """Record how many bytes the client has received; None if it has disconnected."""
        self._is_dropped = num_bytes is None
        self._num_delivered = num_bytes or self._num_delivered
        self._has_delivered.set()

    async def send(self, message: Message) -> None:
        """Send a message as soon as the window allows it."""
        while self._num_sent - self._num_delivered > WINDOW_BYTES and not self._is_dropped:
            self._has_delivered.clear()
            await self._has_delivered.wait()
        if not self._is_dropped:
            self._num_sent += len(message.get("body", b""))
            await self._send(message)


async def _listen(
    receive: Receive,
    record_delivered: Callable[[int | None], None],
    messages: asyncio.Queue[Message],
) -> None:
    """Separate the proxy's reports from the messages for the application."""
    while True:
        message = await receive()
        if message["type"] == _DELIVERED:
            record_delivered(message["bytes"])
            continue
        messages.put_nowait(message)
        if message["type"] == "http.disconnect":
            record_delivered(None)
            return


def has_large_body(scope: Scope) -> bool:
    """Return whether a request's body is under flow control."""
    return _matches(scope, _LARGE_BODIES)


def _matches(scope: Scope, paths: re.Pattern[str]) -> bool:
    return scope["type"] == "http" and paths.fullmatch(scope["path"]) is not None


def _mark(scope: Scope) -> Scope:
    """Mark a request as under flow control; remove a mark that the client sent."""
    headers = [pair for pair in scope["headers"] if pair[0].lower() != _HEADER]
    return {**scope, "headers": [*headers, (_HEADER, b"%d" % WINDOW_BYTES)]}


def _is_marked(scope: Scope) -> bool:
    return any(name.lower() == _HEADER for name, _ in scope["headers"])
