"""Cache, in memory, of the files that never change, as compressed responses.

The first visit of a page loads eighty files. Gradio finds, reads and compresses each of them again
for every visitor.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.ui.frame.assets import FOREVER
from apps.ui.protection.routes import find_route

MAX_CACHED_BYTES = 32 << 20
_ENTRY_BYTES = 4096
"""Counted for the address, the headers and the objects of one response."""
_MAX_QUERY_BYTES = 100
_CONDITIONS = ("range", "if-none-match", "if-modified-since")
_ENCODINGS = ("gzip", "br")
_Key = tuple[str, bytes, tuple[bool, ...]]


class CachedFiles:
    """Middleware that sends a cached response, or forwards the request and caches the response.

    Responses that browsers may cache for ever (`FOREVER`) are cached, by address and accepted
    encodings. Before they exceed `MAX_CACHED_BYTES`, all are dropped. It has no access control.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._cached: dict[_Key, tuple[Message, bytes]] = {}
        self._num_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        key = _find_key(scope)
        if key is None:
            await self.app(scope, receive, send)
        elif key in self._cached:
            start, body = self._cached[key]
            await send(_copy(start))
            await send({"type": "http.response.body", "body": body})
        else:
            await self._forward(key, scope, receive, send)

    async def _forward(self, key: _Key, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and cache the response if it is complete and never changes."""
        start: Message | None = None
        parts: list[bytes] = []

        async def send_copied(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = _copy(message) if _is_immutable(message) else None
            elif message["type"] != "http.response.body":
                start = None  # an extension of the server, which sends the content itself
            elif start is not None:
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    self._store(key, start, b"".join(parts))
            await send(message)

        await self.app(scope, receive, send_copied)

    def _store(self, key: _Key, start: Message, body: bytes) -> None:
        num_bytes = _ENTRY_BYTES + len(body)
        if num_bytes > MAX_CACHED_BYTES or key in self._cached:
            return
        if self._num_bytes + num_bytes > MAX_CACHED_BYTES:
            self._cached.clear()
            self._num_bytes = 0
        self._cached[key] = start, body
        self._num_bytes += num_bytes


def _find_key(scope: Scope) -> _Key | None:
    """Return what the response to a request depends on; None if such a response is not cached."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    headers = Headers(scope=scope)
    query = scope.get("query_string", b"")
    if len(query) > _MAX_QUERY_BYTES or any(name in headers for name in _CONDITIONS):
        return None
    accepted = headers.get("accept-encoding", "")
    return find_route(scope), query, tuple(name in accepted for name in _ENCODINGS)


def _is_immutable(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return start["status"] == 200 and headers.get("cache-control") == FOREVER


def _copy(start: Message) -> Message:
    """Copy the start of a response, whose headers the guards in front of this change."""
    return {**start, "headers": list(start["headers"])}
