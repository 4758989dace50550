"""Who may open the page: a browser on this machine, or whoever has the key.

The page acts with the API's key, so it must ask for that key itself.
"""

import base64
import binascii

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.middleware.auth import find_foreign_client, find_foreign_host, find_foreign_origin, is_key

_CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "worker-src 'self' blob:; object-src 'none'; frame-ancestors 'self'; form-action 'self'"
)


class PageGuard:
    """Middleware that lets a request in or answers 401 or 403.

    With a key, a browser asks for it as the password (any user name). Without one, only a loopback
    address is served. A page of another origin is refused either way. The content policy keeps a
    model's answer from making a browser load anything from elsewhere.
    """

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self.app = app
        self.api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then hand it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["content-security-policy"] = _CONTENT_POLICY
                headers["referrer-policy"] = "no-referrer"
            await send(message)

        refusal = find_refusal(Headers(scope=scope), self.api_key, scope.get("client"))
        if refusal is None:
            await self.app(scope, receive, send_with_policy)
            return
        status, message = refusal
        challenge = {"www-authenticate": 'Basic realm="Tuneserve"'} if status == 401 else None
        await PlainTextResponse(message, status, challenge)(scope, receive, send)


def find_refusal(
    headers: Headers, api_key: str | None, client: tuple[str, int] | None = None
) -> tuple[int, str] | None:
    """Return the status and the reason for refusing a request, or None to let it in."""
    if reason := find_foreign_origin(headers):
        return 403, reason
    if api_key is not None:
        if is_key(_read_password(headers.get("authorization", "")), api_key):
            return None
        return 401, "the API key is needed, as the password"
    reason = find_foreign_client(client) or find_foreign_host(headers)
    return (403, reason) if reason else None


def _read_password(authorization: str) -> bytes:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(encoded, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
