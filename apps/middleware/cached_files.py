"""Cache, in memory of Serve's proxy, of files that never change and are the same for all visitors.

The first visit of the page loads eighty files. Through the proxy and a replica, each of them takes
a multiple of the processor time that it takes from this cache.
"""

import time
from collections.abc import Callable
from hashlib import sha256

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOREVER = "private, max-age=31536000, immutable"
"""The cache control by which an application marks such files: their addresses name their content.

A sender with access to one marked file of an application has access to all of them.
"""
PERMISSION_AGE_S = 5.0
MAX_CACHED_BYTES = 32 << 20
MAX_SENDERS = 1000
_ENTRY_BYTES = 4096
"""Counted for the address, the headers and the objects of one response."""
_MAX_QUERY_BYTES = 100
_CONDITIONS = ("range", "if-none-match", "if-modified-since")
_ENCODINGS = ("gzip", "br")
_ABOUT_CONTENT = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"cache-control",
        b"connection",
        b"pragma",
        b"priority",
        b"referer",
        b"sec-fetch-dest",
    }
)
"""Headers that no access control considers. All others identify the sender."""
_Key = tuple[str, bytes, tuple[bool, ...]]


class CachedFiles:
    """Middleware that sends a cached file, or forwards the request and caches the response.

    The application decides who may read its files. A cached file is only sent to a sender who has
    received one from the application within `PERMISSION_AGE_S`. Responses marked by `FOREVER` are
    cached, by address and accepted encodings. Before they exceed `MAX_CACHED_BYTES`, all are
    dropped.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self._clock = clock
        self._cached: dict[_Key, tuple[Message, bytes]] = {}
        self._num_bytes = 0
        self._permitted_until: dict[bytes, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        key = _find_key(scope)
        if key is None:
            await self.app(scope, receive, send)
            return
        sender = _identify_sender(scope)
        is_permitted = self._permitted_until.get(sender, 0.0) > self._clock()
        if is_permitted and key in self._cached:
            start, body = self._cached[key]
            await send(_copy(start))
            await send({"type": "http.response.body", "body": body})
        else:
            await self._forward(key, sender, scope, receive, send)

    async def _forward(
        self, key: _Key, sender: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Forward a request; if the response is such a file, cache it and permit the sender."""
        start: Message | None = None
        parts: list[bytes] = []

        async def send_copied(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = _copy(message) if _is_shared(message) else None
                if start is not None:
                    self._permit(sender)
                elif message["status"] in (401, 403):
                    self._permitted_until.pop(sender, None)
            elif message["type"] != "http.response.body":
                start = None  # an extension of the server, which sends the content itself
            elif start is not None:
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    self._store(key, start, b"".join(parts))
            await send(message)

        await self.app(scope, receive, send_copied)

    def _permit(self, sender: bytes) -> None:
        self._permitted_until.pop(sender, None)  # the new entry is the last one
        self._permitted_until[sender] = self._clock() + PERMISSION_AGE_S
        if len(self._permitted_until) > MAX_SENDERS:
            del self._permitted_until[next(iter(self._permitted_until))]

    def _store(self, key: _Key, start: Message, body: bytes) -> None:
        num_bytes = _ENTRY_BYTES + len(body)
        if num_bytes > MAX_CACHED_BYTES or key in self._cached:
            return
        if self._num_bytes + num_bytes > MAX_CACHED_BYTES:
            self._cached.clear()
            self._num_bytes = 0
        del MutableHeaders(scope=start)["x-request-id"]
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
    return scope["path"], query, tuple(name in accepted for name in _ENCODINGS)


def _identify_sender(scope: Scope) -> bytes:
    """Return a digest of the application and of all that its access control may consider."""
    headers = [pair for pair in scope["headers"] if pair[0] not in _ABOUT_CONTENT]
    application = scope["path"].split("/")[1:2]
    host = (scope.get("client") or (None,))[0]
    considered = (application, host, scope.get("http_version"), scope.get("scheme"), headers)
    return sha256(repr(considered).encode()).digest()


def _is_shared(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    is_marked = start["status"] == 200 and headers.get("cache-control") == FOREVER
    return is_marked and "set-cookie" not in headers


def _copy(start: Message) -> Message:
    """Copy the start of a response, whose headers the middleware outside of this changes."""
    return {**start, "headers": list(start["headers"])}
