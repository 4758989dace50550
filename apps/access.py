"""Who may talk to the application: programs on this machine, or whoever has the key."""

import secrets
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.settings import API_KEY_VARIABLE

_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_OPEN_PATHS = frozenset({"/healthz"})


class AccessControl:
    """Middleware that lets a request in or answers 401 or 403.

    With a key, every request needs `Authorization: Bearer <key>`. Without one only this machine is
    served: the address asked for must be a loopback one, so that neither another machine nor a web
    page that points its own name here gets in. A page of another origin is refused either way.
    """

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self.app = app
        self.api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then hand it on."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        refusal = find_refusal(Headers(scope=scope), self.api_key)
        if refusal is None:
            await self.app(scope, receive, send)
            return
        status, message = refusal
        error = {"message": message, "type": "authentication_error", "param": None, "code": None}
        await JSONResponse({"error": error}, status)(scope, receive, send)


def find_refusal(headers: Headers, api_key: str | None) -> tuple[int, str] | None:
    """Return the status and the reason for refusing a request, or None to let it in."""
    if api_key is not None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and secrets.compare_digest(
            given.strip().encode(), api_key.encode()
        ):
            return None
        return 401, "a valid API key is needed: send it as 'Authorization: Bearer <key>'"
    host = headers.get("host", "")
    if _hostname(host) not in _LOOPBACK_HOSTS:
        return 403, (
            f"{host!r} is not this machine's loopback address, and without a key only that is "
            f"served; set {API_KEY_VARIABLE} and start again"
        )
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return 403, f"the page {origin!r} may not use this application: it is not part of it"
    return None


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
