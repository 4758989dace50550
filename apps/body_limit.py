"""A request that says it is too large is refused before any of it is read."""

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.errors import error_body


class BodyLimit:
    """Middleware that answers 413 to a `Content-Length` beyond `max_bytes`.

    `limits` has other limits for the paths that begin with its keys.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, limits: Mapping[str, int]) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then hand it on."""
        if scope["type"] == "http":
            length = Headers(scope=scope).get("content-length", "")
            own = (most for path, most in self.limits.items() if scope["path"].startswith(path))
            max_bytes = next(own, self.max_bytes)
            if length.isdecimal() and int(length) > max_bytes:
                message = f"the request has {int(length):,} bytes, at most {max_bytes:,} are taken"
                await JSONResponse(error_body(413, message), 413)(scope, receive, send)
                return
        await self.app(scope, receive, send)
