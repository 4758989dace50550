"""No more of a request is read than its limit, whether it says its length or not."""

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.errors import error_body

DEFAULT_MAX_UPLOAD_BYTES = 5_000_000_000  # of one file of rows
MAX_TEXT_BYTES = 8_000_000  # a million characters in a request for text, but for odd ones
MAX_JSON_BYTES = 250_000
"""Of all other JSON bodies; 16 pairs of metadata are 110 KB if every character is an escape."""

_MAX_DIGITS = 18


class BodyLimit:
    """Middleware that answers 413 to a body of more than `max_bytes`.

    One that says its length is refused unread; of any other, reading ends with the piece that goes
    beyond. `limits` has other limits for the paths that begin with its keys.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, limits: Mapping[str, int] | None = None
    ) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.limits = limits or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then hand it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        own = (most for path, most in self.limits.items() if scope["path"].startswith(path))
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
    """Whether a content-length is more than a limit; nonsense is not, the body is counted."""
    if not (length.isascii() and length.isdecimal()):
        return False
    return len(length) > _MAX_DIGITS or int(length) > max_bytes


class _TooLargeError(HTTPException):
    """What an application meets that reads beyond the limit."""


class _CountedExchange:
    """One request and its answer; an answer that begins after the limit is passed is not sent."""

    def __init__(self, max_bytes: int, receive: Receive, send: Send) -> None:
        self._max_bytes, self._receive, self._send = max_bytes, receive, send
        self._num_bytes = 0
        self.is_answered = False

    @property
    def is_refused(self) -> bool:
        """Whether the limit is passed."""
        return self._num_bytes > self._max_bytes

    async def receive(self) -> Message:
        """Read on, unless the limit is passed."""
        if not self.is_refused:
            message = await self._receive()
            self._num_bytes += len(message.get("body", b""))
            if not self.is_refused:
                return message
        raise _TooLargeError(413)

    async def send(self, message: Message) -> None:
        """Send, unless it is what the application makes of the refusal."""
        if self.is_refused and not self.is_answered:
            return
        self.is_answered = True
        await self._send(message)
