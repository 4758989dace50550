"""Limits on the concurrent requests of a replica per class, so that no class takes all slots.

Ray Serve counts all requests of a replica together. Its limit is above the sum of those here, so
that health checks always reach the replica.
"""

from collections import Counter
from typing import Literal
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.access.exchange import find_exchange
from apps.errors import error_body

RequestClass = Literal["health", "stream", "ordinary"]

MAX_ORDINARY_REQUESTS = 512
MAX_ORDINARY_PER_KEY = 384
MAX_STREAM_SHARE_PER_KEY = 0.75
"""The share of `max_streams` that one key can have open."""
HEALTH_SLOTS = 64
_HEALTH_PATHS = frozenset({"/healthz", "/livez", "/readyz"})
_RETRY_AFTER_S = 5
_TRUE = frozenset({"1", "true", "on", "yes", "t", "y"})  # values that the routes parse as true


class Admission:
    """Middleware that answers 429 beyond the limit of a class, or beyond that of one key in it.

    If no key exists, only the limits per class apply.
    """

    def __init__(self, app: ASGIApp, max_streams: int) -> None:
        self._app = app
        self._limits: dict[RequestClass, int] = {
            "stream": max_streams,
            "ordinary": MAX_ORDINARY_REQUESTS,
        }
        self._limits_per_key: dict[RequestClass, int] = {
            "stream": max(1, int(max_streams * MAX_STREAM_SHARE_PER_KEY)),
            "ordinary": MAX_ORDINARY_PER_KEY,
        }
        self._num_ongoing: Counter[RequestClass] = Counter()
        self._num_by_key: Counter[tuple[RequestClass, str]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, or refuse it."""
        kind = classify_request(scope) if scope["type"] == "http" else "health"
        if kind == "health":
            await self._app(scope, receive, send)
            return
        key = _find_key(scope)
        if (reason := self._find_refusal(kind, key)) is not None:
            error = error_body(429, f"{reason}; try again later", code="overloaded")
            headers = {"retry-after": str(_RETRY_AFTER_S)}
            await JSONResponse(error, 429, headers)(scope, receive, send)
            return
        self._num_ongoing[kind] += 1
        if key is not None:
            self._num_by_key[kind, key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_ongoing[kind] -= 1
            if key is not None:
                self._num_by_key[kind, key] -= 1
                self._num_by_key += Counter()  # removes keys without requests

    def _find_refusal(self, kind: RequestClass, key: str | None) -> str | None:
        """Return why another request is refused, or None."""
        what = "streams of events and logs" if kind == "stream" else "requests"
        if self._num_ongoing[kind] >= self._limits[kind]:
            return f"{self._limits[kind]} {what} are open, which is the maximum"
        if key is not None and self._num_by_key[kind, key] >= self._limits_per_key[kind]:
            return f"{self._limits_per_key[kind]} {what} of this key are open, which is the maximum"
        return None


def _find_key(scope: Scope) -> str | None:
    """Return the id of a request's key; None if no key exists."""
    exchange = find_exchange(scope)
    return exchange.principal.key_id if exchange and exchange.principal else None


def classify_request(scope: Scope) -> RequestClass:
    """Return the class of a request; a "stream" may stay open as long as its job runs."""
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
