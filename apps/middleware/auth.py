"""Who may talk to the application: programs on this machine, or whoever has the key."""

import ipaddress
import os
import secrets
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

API_KEY_VARIABLE = "TUNESERVE_API_KEY"

_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_OPEN_PATHS = frozenset({"/livez", "/readyz", "/healthz"})


class AccessControl:
    """Middleware that lets a request in or answers 401 or 403.

    With a key, every request needs `Authorization: Bearer <key>`. Without one only this machine is
    served: both the client and the address it asked for must be loopback ones, so that neither
    another machine nor a web page that points its own name here gets in, and no page of another
    origin is answered.
    """

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self.app = app
        self.api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then hand it on."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        refusal = find_refusal(Headers(scope=scope), self.api_key, scope.get("client"))
        if refusal is None:
            await self.app(scope, receive, send)
            return
        status, message = refusal
        error = {"message": message, "type": "authentication_error", "param": None, "code": None}
        await JSONResponse({"error": error}, status)(scope, receive, send)


def read_api_key() -> str | None:
    """Return the key that clients must send, if the environment sets one."""
    return os.environ.get(API_KEY_VARIABLE, "").strip() or None


def find_refusal(
    headers: Headers, api_key: str | None, client: tuple[str, int] | None = None
) -> tuple[int, str] | None:
    """Return the status and the reason for refusing a request, or None to let it in."""
    if api_key is not None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and is_key(given.strip().encode(), api_key):
            return None
        return 401, "a valid API key is needed: send it as 'Authorization: Bearer <key>'"
    reason = (
        find_foreign_client(client) or find_foreign_host(headers) or find_foreign_origin(headers)
    )
    return (403, reason) if reason else None


def is_key(given: bytes, api_key: str) -> bool:
    """Compare in a time that tells nothing about the key."""
    return secrets.compare_digest(given, api_key.encode())


def is_loopback(address: str) -> bool:
    """Whether an IP address is one of this machine's own, that no other machine can reach."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def find_foreign_client(client: tuple[str, int] | None) -> str | None:
    """Say that a request came from another machine, or return None."""
    if client is None or is_loopback(client[0]):
        return None
    return f"without a key only this machine is served; set {API_KEY_VARIABLE} and start again"


def find_foreign_host(headers: Headers) -> str | None:
    """Say why a request did not come to this machine's own address, or return None."""
    host = headers.get("host", "")
    if _read_hostname(host) in _LOOPBACK_HOSTS:
        return None
    return (
        f"{host!r} is not this machine's loopback address, and without a key only that is served; "
        f"set {API_KEY_VARIABLE} and start again"
    )


def find_foreign_origin(headers: Headers) -> str | None:
    """Say which other site's page sent a request, or return None."""
    origin = headers.get("origin")
    if origin is None or origin.partition("://")[2] == headers.get("host", ""):
        return None
    return f"the page {origin!r} may not use this application: it is not part of it"


def _read_hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
