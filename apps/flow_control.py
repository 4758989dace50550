"""Bodies that come no faster than they are used.

Serve's proxy reads a request's body as fast as the network gives it, and a replica fetches from the
proxy as fast as it can; neither waits for the application. So a large upload ends up in memory,
whole. Here the application says how much it has used, in messages of its own among those of its
answer, and the proxy reads on only a window beyond: credit-based flow control, as in HTTP/2.

The proxy's half is a middleware that Serve loads by an environment variable
(`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`, set by `tuneserve run`); it marks the requests that it
looks after. Where it is not there, all works as before.
"""

import asyncio
import re

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

WINDOW_BYTES = 1 << 19
_STEP_BYTES = 1 << 17  # so much is used before the application says so
_HEADER = b"x-tuneserve-window"
_USED = "tuneserve.used"
# What takes large bodies; other applications behind the same proxy would never say anything.
_PATH = re.compile(r"/v1/(files|models/[^/]+)/?$")


def build_middlewares() -> list[Middleware]:
    """Name the proxy's half, as Serve asks for it."""
    return [Middleware(WindowedReading)]


class WindowedReading:
    """In the proxy: reads on only while the application is less than a window behind."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand one request on, and keep what the application says of its body to itself."""
        if scope["type"] != "http" or not _PATH.search(scope["path"]):
            await self.app(scope, receive, send)
            return
        headers = [pair for pair in scope["headers"] if pair[0].lower() != _HEADER]
        num_read = num_used = 0
        has_used = asyncio.Event()

        async def receive_in_window() -> Message:
            nonlocal num_read
            while num_read - num_used > WINDOW_BYTES:
                has_used.clear()
                await has_used.wait()
            message = await receive()
            num_read += len(message.get("body", b""))
            return message

        async def send_on(message: Message) -> None:
            nonlocal num_used
            if message["type"] == _USED:
                num_used = message["bytes"]
                has_used.set()
            else:
                await send(message)

        marked = {**scope, "headers": [*headers, (_HEADER, b"%d" % WINDOW_BYTES)]}
        await self.app(marked, receive_in_window, send_on)


class TellUse:
    """In the application: says how much of a body it has used, to a proxy that waits for it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand one request on."""
        is_waited_for = scope["type"] == "http" and any(
            name.lower() == _HEADER for name, _ in scope["headers"]
        )
        if not is_waited_for:
            await self.app(scope, receive, send)
            return
        num_used = num_told = 0

        async def receive_and_tell() -> Message:
            nonlocal num_used, num_told
            message = await receive()
            num_used += len(message.get("body", b""))
            if num_used - num_told >= _STEP_BYTES and message.get("more_body"):
                num_told = num_used
                await send({"type": _USED, "bytes": num_used})
            return message

        await self.app(scope, receive_and_tell, send)
