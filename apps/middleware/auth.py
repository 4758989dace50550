"""Access control: the key of a request, or its local origin, must have the route's permission."""

import time
from collections.abc import Iterable

from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.access.exchange import Exchange, begin_exchange, find_exchange
from apps.access.gate import AccessRefusedError, Gate, Principal
from apps.access.rate_limit import Bucket
from apps.access.roles import Permission, match_route
from apps.errors import error_body
from storage.layout import new_id

_OPEN_PATHS = frozenset({"/livez", "/readyz", "/healthz"})
WRONG_KEYS_PER_MINUTE = 300
"""Requests with a wrong key per client address that are answered 401; more are answered 429."""
_MAX_ADDRESSES = 10_000


class AccessControl:
    """Middleware that forwards a request, or rejects it with 401, 403 or 429.

    `routes` are those of the application behind it. Each declares the permission that it requires;
    a route that declares none is closed to all clients. Without `routes` every request requires the
    role `admin`. Requests for unknown paths need a key too, so that they reveal nothing.
    """

    def __init__(self, app: ASGIApp, gate: Gate, routes: Iterable[BaseRoute] | None = None) -> None:
        self.app = app
        self._gate = gate
        self._routes = None if routes is None else list(routes)
        self._wrong_keys = WrongKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then forward it."""
        if scope["type"] == "websocket":  # no route uses WebSockets
            if (exchange := find_exchange(scope)) is not None:
                exchange.refusal = "websocket"
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        exchange = find_exchange(scope)
        if exchange is None:
            exchange = Exchange(new_id("req"))
            begin_exchange(scope, exchange)
        try:
            principal = self._gate.identify(scope)
            exchange.principal = principal
            self._check_permission(scope, principal, exchange)
        except AccessRefusedError as exc:
            exchange.principal = exchange.principal or exc.principal
            exchange.refusal = exc.code or ("no_api_key" if exc.status == 401 else "forbidden")
            await self._refuse(exc, scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _check_permission(self, scope: Scope, principal: Principal, exchange: Exchange) -> None:
        if self._routes is None:  # which requests make changes is unknown
            required: Permission | None = Permission.ADMINISTER
        else:
            match = match_route(self._routes, scope)
            if match is None:  # the application answers 404 or 405
                return
            required, exchange.subject = match
            exchange.permission = required
        if required is None:
            raise AccessRefusedError(
                403,
                "this route declares no permission, so it is closed; the application must declare "
                "one with '@requires(...)'",
                code="undeclared_route",
            )
        if not principal.may(required):
            raise AccessRefusedError(
                403,
                principal.explain_refusal(required),
                code="insufficient_permission",
                principal=principal,
            )

    async def _refuse(
        self, exc: AccessRefusedError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        status, message, headers = exc.status, exc.message, {}
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        if exc.code == "invalid_api_key" and (wait_s := self._wrong_keys.count(scope)):
            status, headers = 429, {"retry-after": str(wait_s)}
            message = f"too many requests with a wrong API key; try again in {wait_s} s"
        body = error_body(status, message, code=exc.code)
        if status == 403 and exc.code != "insufficient_permission":
            body["error"]["type"] = "authentication_error"
        await JSONResponse(body, status, headers)(scope, receive, send)


class WrongKeys:
    """Rate limit on requests with a wrong key per client address.

    It never affects requests with a valid key, even from the same address: behind a proxy all
    clients share one address.
    """

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}

    def count(self, scope: Scope) -> int:
        """Count a request; return the seconds to wait if there were too many, else 0."""
        address = (scope.get("client") or ("",))[0]
        bucket = self._buckets.pop(address, None) or Bucket(WRONG_KEYS_PER_MINUTE, time.monotonic)
        self._buckets[address] = bucket
        if len(self._buckets) > _MAX_ADDRESSES:
            del self._buckets[next(iter(self._buckets))]
        if bucket.level < 1:
            return max(1, round(bucket.wait_s(1)))
        bucket.take(1)
        return 0
