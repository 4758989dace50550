"""Limits that Serve's proxy applies to a request before an application receives it.

The proxy reads a body even if the application does not, keeps it in memory, and copies the client's
request id into its log lines.
"""

import ipaddress
import re

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.errors import error_body
from apps.middleware.connection_limits import read_connection_limits
from apps.middleware.flow_control import has_large_body

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_REQUEST_ID_HEADERS = frozenset({b"x-request-id", b"x_request_id"})


class BodyCap:
    """Middleware that reads at most `max_body_bytes` of a body, and answers 413 to more.

    Large bodies under flow control (`WindowedReading`) are exempt.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._max_bytes = read_connection_limits().max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request; if its body is too large, the application gets a disconnect."""
        if scope["type"] != "http" or has_large_body(scope):
            await self.app(scope, receive, send)
            return
        num_bytes = 0
        is_answered = False

        async def receive_some() -> Message:
            nonlocal num_bytes
            if num_bytes > self._max_bytes:
                return {"type": "http.disconnect"}
            message = await receive()
            num_bytes += len(message.get("body", b""))
            return message if num_bytes <= self._max_bytes else {"type": "http.disconnect"}

        async def send_unless_refused(message: Message) -> None:
            nonlocal is_answered
            if is_answered or num_bytes <= self._max_bytes:
                is_answered = True
                await send(message)

        await self.app(scope, receive_some, send_unless_refused)
        if num_bytes > self._max_bytes and not is_answered:
            message = f"the request is too large; expected at most {self._max_bytes:,} bytes"
            headers = {"connection": "close"}
            await JSONResponse(error_body(413, message), 413, headers)(scope, receive, send)


class CleanScope:
    """Middleware that removes a malformed request id, and replaces a malformed client address.

    Serve logs the id unchanged, and uvicorn takes the address from a header that any process on
    this machine can set to any text.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request; Serve generates an id if there is none."""
        if scope["type"] in ("http", "websocket"):
            scope = {
                **scope,
                "headers": [pair for pair in scope["headers"] if _is_clean(*pair)],
                "client": _clean_client(scope.get("client")),
            }
        await self.app(scope, receive, send)


def _is_clean(name: bytes, value: bytes) -> bool:
    is_request_id = name.lower() in _REQUEST_ID_HEADERS
    return not is_request_id or REQUEST_ID.fullmatch(value.decode("latin-1")) is not None


def _clean_client(client: tuple[str, int] | None) -> tuple[str, int] | None:
    if client is None:
        return None
    host, port = client
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "invalid", port
    return host, port
