"""Access control of the page: an API key is required; if no key exists, a local browser.

The page has no key of its own. It makes every API call with the visitor's key, so the API decides
what each visitor may do.
"""

import asyncio
import base64
import binascii
import logging
import time
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from hashlib import sha256

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.access.audit import FAILURES_PER_MINUTE
from apps.access.keyless import find_foreign_origin, find_foreign_request
from apps.access.rate_limit import Bucket
from apps.ui.protection.routes import find_route, is_file

logger = logging.getLogger(__name__)

_CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "worker-src 'self' blob:; object-src 'none'; frame-ancestors 'self'; form-action 'none'"
)
VERDICT_AGE_S = 5.0
"""How long a permission is cached for the page, in seconds; the API itself checks every call."""
_NEEDED_AGE_S = 60.0  # how long the verdict that a key is required is cached
_MAX_VERDICTS = 1000
_MAX_LOGGED_CHARACTERS = 200


class Verdict(Enum):
    """The API's verdict on a key."""

    VALID = auto()
    REFUSED = auto()
    NOT_NEEDED = auto()
    """No key exists, and the API serves the page's requests as local ones."""
    UNKNOWN = auto()
    """The API did not respond, or failed."""


AskApi = Callable[[str | None], Awaitable[Verdict]]


class PageGuard:
    """Middleware that forwards a request, or rejects it with 401, 403 or 503.

    A browser asks for the key as the password (any user name). If no key is required, only local
    requests are served. Cross-origin requests are refused in both cases. The content security
    policy prevents a model's answer from making a browser load anything from another origin.
    """

    def __init__(self, app: ASGIApp, ask_api: AskApi, *, needs_key: bool) -> None:
        self.app = app
        self._ask_api = ask_api
        self._needs_key = needs_key
        self._needed_until = 0.0
        self._permitted: dict[bytes, tuple[Verdict, float]] = {}
        self._asking: dict[bytes, asyncio.Task[Verdict]] = {}
        self._refusals = RefusalLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then forward it."""
        if scope["type"] == "websocket":
            self._refusals.write(scope, "the page uses no WebSocket")
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["content-security-policy"] = _CONTENT_POLICY
                headers["referrer-policy"] = "no-referrer"
            await send(message)

        refusal = await self._find_refusal(scope)
        if refusal is None:
            await self.app(scope, receive, send_with_policy)
            return
        status, message = refusal
        if status != 401 or "authorization" in Headers(scope=scope):  # else the browser prompts
            self._refusals.write(scope, f"{status}: {message}")
        challenge = {"www-authenticate": 'Basic realm="Tuneserve"'} if status == 401 else None
        await PlainTextResponse(message, status, challenge)(scope, receive, send)

    async def _find_refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason of a refusal, or None to accept the request."""
        headers = Headers(scope=scope)
        if reason := find_foreign_origin(headers):
            return 403, reason
        key = read_password(headers.get("authorization", ""))
        if key is None and (self._needs_key or time.monotonic() < self._needed_until):
            verdict = Verdict.REFUSED
        else:
            verdict = await self._check_key(key, for_file=is_file(find_route(scope)))
        if verdict is Verdict.VALID:
            return None
        if verdict is Verdict.REFUSED:
            return 401, "a valid API key is required as the password"
        if self._needs_key and verdict is Verdict.UNKNOWN:
            return 503, "the API, which checks the keys, does not answer; it may still be starting"
        version = scope.get("http_version", "1.1")
        local = find_foreign_request(headers, scope.get("client"), version)
        return (403, local) if local else None

    async def _check_key(self, key: str | None, *, for_file: bool) -> Verdict:
        """Ask the API about a key, unless a verdict that permits the page is cached.

        The verdict that no key is needed is used again for files only, of which a first visit loads
        eighty: the first key of a server must apply to the page at once.
        """
        digest = sha256((key or "").encode(errors="surrogateescape")).digest()
        verdict, until = self._permitted.get(digest, (Verdict.UNKNOWN, 0.0))
        if until > time.monotonic() and (for_file or verdict is Verdict.VALID):
            return verdict
        verdict = await (self._ask_once(digest, key) if for_file else self._ask_api(key))
        self._permitted.pop(digest, None)
        if key is None and verdict is Verdict.REFUSED:
            self._needed_until = time.monotonic() + _NEEDED_AGE_S
        if verdict in (Verdict.VALID, Verdict.NOT_NEEDED):
            self._permitted[digest] = (verdict, time.monotonic() + VERDICT_AGE_S)
            if len(self._permitted) > _MAX_VERDICTS:
                del self._permitted[next(iter(self._permitted))]
        return verdict

    async def _ask_once(self, digest: bytes, key: str | None) -> Verdict:
        """Ask the API about a key, once for all files that are requested at the same time."""
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.ensure_future(self._ask_api(key))
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        return await asyncio.shield(asking)  # a visitor who leaves does not cancel it for others


class RefusalLog:
    """Rate-limited log of refused requests, in the log of the page's process.

    The audit log is in the storage root, whose path this process does not have.
    """

    def __init__(self) -> None:
        self._bucket = Bucket(FAILURES_PER_MINUTE, time.monotonic)
        self._num_suppressed = 0

    def write(self, scope: Scope, reason: str) -> None:
        """Log a refused request; beyond the limit, count it for the next line.

        The path and the reason, which may quote a header, are truncated.
        """
        if self._bucket.level < 1:
            self._num_suppressed += 1
            return
        self._bucket.take(1)
        num_suppressed, self._num_suppressed = self._num_suppressed, 0
        logger.warning(
            "the page refused %s %r from %s: %s (%d earlier ones were not logged)",
            scope.get("method", "WEBSOCKET"),
            scope["path"][:_MAX_LOGGED_CHARACTERS],
            (scope.get("client") or ("an unknown address",))[0],
            reason[:_MAX_LOGGED_CHARACTERS],
            num_suppressed,
        )


def read_password(authorization: str) -> str | None:
    """Return the password in an `authorization` header; None if it has none to forward."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        password = base64.b64decode(encoded, validate=True).partition(b":")[2].decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return password.strip() if password.strip().isprintable() and password.strip() else None
