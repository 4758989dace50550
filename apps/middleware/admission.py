"""Limits of the requests that a replica works on at once, by class: none takes all slots.

Ray Serve counts all requests of a replica together. Its limit is above the sum of those here, so
that requests for health always reach the replica.
"""

from typing import Literal
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.errors import error_body

RequestClass = Literal["health", "stream", "ordinary"]

MAX_ORDINARY_REQUESTS = 512
HEALTH_SLOTS = 64
_HEALTH_PATHS = frozenset({"/healthz", "/livez", "/readyz"})
_RETRY_AFTER_S = 5
_TRUE = frozenset({"1", "true", "on", "yes", "t", "y"})  # as the routes read it


class Admission:
    """Middleware that answers 429 to a request beyond the limit of its class."""

    def __init__(self, app: ASGIApp, max_streams: int) -> None:
        self._app = app
        self._limits: dict[RequestClass, int] = {
            "stream": max_streams,
            "ordinary": MAX_ORDINARY_REQUESTS,
        }
        self._num_ongoing: dict[RequestClass, int] = {"stream": 0, "ordinary": 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Work on one request, or refuse it."""
        kind = classify_request(scope) if scope["type"] == "http" else "health"
        if kind == "health":
            await self._app(scope, receive, send)
            return
        if self._num_ongoing[kind] >= self._limits[kind]:
            what = "streams of events and logs are" if kind == "stream" else "requests are"
            message = f"{self._limits[kind]} {what} open, the most at once; try again later"
            error = error_body(429, message, code="overloaded")
            headers = {"retry-after": str(_RETRY_AFTER_S)}
            await JSONResponse(error, 429, headers)(scope, receive, send)
            return
        self._num_ongoing[kind] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_ongoing[kind] -= 1


def classify_request(scope: Scope) -> RequestClass:
    """Tell a stream that lasts as long as its job from a request that ends by itself."""
    path = scope["path"]
    if path in _HEALTH_PATHS:
        return "health"
    if path.endswith(("/events", "/logs")) and scope["method"] == "GET":
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        flag = "stream" if path.endswith("/events") else "follow"
        accepts = "text/event-stream" in Headers(scope=scope).get("accept", "")
        if query.get(flag, [""])[-1].lower() in _TRUE or (accepts and flag == "stream"):
            return "stream"
    return "ordinary"
