"""Limit on the size of request bodies, with or without a `content-length`."""

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.errors import error_body

DEFAULT_MAX_UPLOAD_BYTES = 5_000_000_000  # of one file of rows
MAX_TEXT_BYTES = 8_000_000  # a million characters of a prompt, at 8 bytes each in JSON
MAX_IMAGES_BYTES = 16_000_000  # of the images of a request, in base64 or in a form
MAX_JSON_BYTES = 250_000
"""For all other JSON bodies; 16 metadata pairs take 110 KB if every character is escaped."""

_MAX_DIGITS = 18


class BodyLimit:
    """Middleware that answers 413 to a body of more than `max_bytes`.

    A body whose `content-length` exceeds the limit is not read; any other is read up to the chunk
    that exceeds it. `limits` has other limits, by method and path prefix as in 'PUT /v1/models'.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, limits: Mapping[str, int] | None = None
    ) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.limits = limits or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then forward it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route = f"{scope['method']} {scope['path']}"
        own = (most for start, most in self.limits.items() if route.startswith(start))
        max_bytes = next(own, self.max_bytes)
        length = Headers(scope=scope).get("content-length", "")
        if _is_more(length, max_bytes):
            message = (
                f"the request has {length[:_MAX_DIGITS]} bytes; expected at most {max_bytes:,}"
            )
            await JSONResponse(error_body(413, message), 413)(scope, receive, send)
            return
        exchange = _CountedExchange(max_bytes, receive, send)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except _TooLargeError:
            if exchange.is_answered:
                raise
        if exchange.is_refused and not exchange.is_answered:
            message = f"the request is too large; expected at most {max_bytes:,} bytes"
            await JSONResponse(error_body(413, message), 413)(scope, receive, send)


def _is_more(length: str, max_bytes: int) -> bool:
    """Return whether a content-length exceeds a limit; False if malformed: the body is counted."""
    if not (length.isascii() and length.isdecimal()):
        return False
    return len(length) > _MAX_DIGITS or int(length) > max_bytes


class _TooLargeError(HTTPException):
    """Raised in an application that reads beyond the limit."""


class _CountedExchange:
    """One request and its response, which is not sent if it starts after the limit is exceeded."""

    def __init__(self, max_bytes: int, receive: Receive, send: Send) -> None:
        self._max_bytes, self._receive, self._send = max_bytes, receive, send
        self._num_bytes = 0
        self.is_answered = False

    @property
    def is_refused(self) -> bool:
        """Whether the limit is exceeded."""
        return self._num_bytes > self._max_bytes

    async def receive(self) -> Message:
        """Receive a message; raise `_TooLargeError` if the limit is exceeded."""
        if not self.is_refused:
            message = await self._receive()
            self._num_bytes += len(message.get("body", b""))
            if not self.is_refused:
                return message
        raise _TooLargeError(413)

    async def send(self, message: Message) -> None:
        """Send a message, unless it is the application's own response to the exceeded limit."""
        if self.is_refused and not self.is_answered:
            return
        self.is_answered = True
        await self._send(message)
