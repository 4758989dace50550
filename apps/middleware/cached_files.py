"""Cache in Serve's proxy for files that never change and are the same for all visitors.

The first visit of the page loads eighty files. Through the proxy and a replica, each of them takes
a multiple of the processor time that it takes from this cache.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOREVER = "private, max-age=31536000, immutable"
_MARK = "x-same-for-all-visitors"
CACHED_FILE_HEADERS = {"cache-control": FOREVER, _MARK: "1"}
"""The headers by which an application marks such a file, whose address names its content.

A sender with access to one marked file below the first segment of a path has access to all of them.
"""
PERMISSION_AGE_S = 5.0
MAX_CACHED_BYTES = 32 << 20
MAX_FILE_BYTES = 8 << 20
MAX_SENDERS = 1000
_ENTRY_BYTES = 4096
"""Counted for the address, the headers and the objects of one response."""
_MAX_QUERY_BYTES = 100
_CONDITIONS = ("range", "if-none-match", "if-modified-since")
_ENCODINGS = ("gzip", "br")
_NOT_IDENTIFYING = frozenset(
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
_CacheKey = tuple[str, bytes, tuple[bool, ...]]


@dataclass
class _File:
    """A marked response. `is_kept`: its content is collected, not only its digest."""

    start: Message
    is_kept: bool
    parts: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    digest: Any = field(default_factory=sha256)

    def add(self, part: bytes) -> None:
        """Add the next part of the content."""
        self.num_bytes += len(part)
        self.digest.update(part)
        if self.num_bytes > MAX_FILE_BYTES:
            self.is_kept = False
            self.parts.clear()
        if self.is_kept:
            self.parts.append(part)

    def is_complete(self) -> bool:
        """Whether the content is as long as the headers promise, if they do."""
        length = Headers(raw=self.start["headers"]).get("content-length")
        return length in (None, str(self.num_bytes))

    def equals(self, other: "_File") -> bool:
        """Whether headers and content are the same."""
        is_same: bool = self.digest.digest() == other.digest.digest()
        return is_same and self.start == other.start


class CachedFiles:
    """Middleware that sends a cached file, or forwards the request and caches the response.

    The application decides who may read its files. A cached file is only sent to a sender who has
    received one from the application within `PERMISSION_AGE_S`. Responses with
    `CACHED_FILE_HEADERS` are cached, by address and accepted encodings. Before they exceed
    `MAX_CACHED_BYTES`, all are dropped. One is dropped when the application sends something else.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self._clock = clock
        self._cached: dict[_CacheKey, _File] = {}
        self._num_bytes = 0
        self._collecting: set[_CacheKey] = set()
        self._permitted_until: dict[bytes, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        key = _find_cache_key(scope)
        if key is None:
            await self.app(scope, receive, send)
            return
        sender = _identify_sender(scope)
        is_permitted = self._permitted_until.get(sender, 0.0) > self._clock()
        if is_permitted and key in self._cached:
            await _send_file(self._cached[key], send)
        else:
            await self._forward(key, sender, scope, receive, send)

    async def _forward(
        self, key: _CacheKey, sender: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Forward a request; if the response is such a file, cache it and permit the sender."""
        is_first = key not in self._cached and key not in self._collecting
        file: _File | None = None

        async def send_copied(message: Message) -> None:
            nonlocal file
            if message["type"] == "http.response.start":
                file = _begin_file(message, is_first) if _is_marked(message) else None
                if file is not None:
                    self._permit(sender)
                elif message["status"] in (401, 403):
                    self._permitted_until.pop(sender, None)
                elif message["status"] < 500:
                    self._drop(key)
            elif message["type"] != "http.response.body":
                file = None  # an extension of the server, which sends the content itself
            elif file is not None:
                file.add(message.get("body", b""))
                if not message.get("more_body"):
                    self._end(key, file)
            await send(message)

        if is_first:
            self._collecting.add(key)
        try:
            await self.app(scope, receive, send_copied)
        finally:
            if is_first:
                self._collecting.discard(key)

    def _end(self, key: _CacheKey, file: _File) -> None:
        """Cache a file that was forwarded, or drop the cached one if the new one is another."""
        cached = self._cached.get(key)
        if cached is None:
            if file.is_kept and file.is_complete():
                self._store(key, file)
        elif not file.equals(cached):
            self._drop(key)

    def _drop(self, key: _CacheKey) -> None:
        """Drop a file that is not what the application sends now."""
        file = self._cached.pop(key, None)
        self._num_bytes -= 0 if file is None else _count_bytes(file)

    def _store(self, key: _CacheKey, file: _File) -> None:
        num_bytes = _count_bytes(file)
        if self._num_bytes + num_bytes > MAX_CACHED_BYTES:
            self._cached.clear()
            self._num_bytes = 0
        self._cached[key] = file
        self._num_bytes += num_bytes

    def _permit(self, sender: bytes) -> None:
        self._permitted_until.pop(sender, None)  # the new entry is the last one
        self._permitted_until[sender] = self._clock() + PERMISSION_AGE_S
        if len(self._permitted_until) > MAX_SENDERS:
            del self._permitted_until[next(iter(self._permitted_until))]


def _begin_file(start: Message, is_kept: bool) -> _File:
    copied = _copy_start(start)
    del MutableHeaders(scope=copied)["x-request-id"]
    return _File(copied, is_kept)


async def _send_file(file: _File, send: Send) -> None:
    """Send a cached file in the application's parts, so that a slow client is waited for."""
    await send(_copy_start(file.start))
    for part in file.parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _find_cache_key(scope: Scope) -> _CacheKey | None:
    """Return the cache key of a request; None if its response is never cached."""
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
    headers = [pair for pair in scope["headers"] if pair[0] not in _NOT_IDENTIFYING]
    application = scope["path"].split("/")[1:2]
    host = (scope.get("client") or (None,))[0]
    considered = (application, host, scope.get("http_version"), scope.get("scheme"), headers)
    return sha256(repr(considered).encode()).digest()


def _is_marked(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return start["status"] == 200 and _MARK in headers and "set-cookie" not in headers


def _count_bytes(file: _File) -> int:
    return _ENTRY_BYTES + file.num_bytes


def _copy_start(start: Message) -> Message:
    """Copy the start of a response, whose headers the middleware outside of this changes."""
    return {**start, "headers": list(start["headers"])}
