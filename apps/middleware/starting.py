"""Answer 503 instead of 404 while the application is not deployed yet.

Serve's proxy answers 404 for every path until the application's routes reach it. A client that
polls a job or a file during a restart would conclude that it was deleted.
"""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.errors import error_body

RETRY_AFTER_S = 5
# The end of the proxy's own 404 text; an application's 404 is JSON or has another text.
_SERVE_NOT_FOUND = b"available routes."


class StartingGate:
    """Middleware of Serve's proxy that turns the proxy's own 404 into 503 with `Retry-After`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request; replace the response if no application received the request."""
        if scope["type"] != "http" or scope["path"] == "*":  # `OPTIONS *` never has a route
            await self.app(scope, receive, send)
            return
        held: Message | None = None

        async def send_or_replace(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and message["status"] == 404:
                held = message  # until its body identifies the sender
                return
            if held is not None:
                start, held = held, None
                if message.get("body", b"").endswith(_SERVE_NOT_FOUND):
                    await _refuse(scope, receive, send)
                    return
                await send(start)
            await send(message)

        await self.app(scope, receive, send_or_replace)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    body = error_body(503, "the application is starting; try again", code="starting")
    await JSONResponse(body, 503, {"retry-after": str(RETRY_AFTER_S)})(scope, receive, send)
