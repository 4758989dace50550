"""Limits on requests and tokens per minute of each key; requests beyond them are answered 429."""

import math
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.access.exchange import Exchange, find_exchange
from apps.access.rate_limit import BYTES_PER_TOKEN, KeyBuckets, RateLimiter, Refusal
from apps.access.roles import Permission
from apps.errors import error_body


class RateLimit:
    """Middleware behind the access control; a key without limits is not counted."""

    def __init__(self, app: ASGIApp, limiter: RateLimiter) -> None:
        self.app = app
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit one request, forward it, and count the tokens that it used."""
        exchange = find_exchange(scope)
        principal = None if exchange is None else exchange.principal
        buckets = None if principal is None else self._limiter.find(principal)
        if exchange is None or buckets is None:
            await self.app(scope, receive, send)
            return
        reserved = _estimate_tokens(scope, exchange)
        if (refusal := buckets.admit(reserved)) is not None:
            exchange.refusal = "rate_limit_exceeded"
            await _refuse(refusal, buckets, scope, receive, send)
            return
        status: int | None = None
        num_bytes = 0

        async def receive_and_count() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            return message

        async def send_with_limits(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(buckets.describe())
            await send(message)

        try:
            await self.app(scope, receive_and_count, send_with_limits)
        finally:
            estimate = max(reserved, num_bytes // BYTES_PER_TOKEN) if reserved else 0
            buckets.correct(reserved, _find_used(exchange, status, estimate))


def _estimate_tokens(scope: Scope, exchange: Exchange) -> int:
    """Estimate the tokens of a prompt from the body length; return 0 if no text is generated."""
    if exchange.permission is not Permission.GENERATE:
        return 0
    length = Headers(scope=scope).get("content-length", "")
    return max(1, (int(length) if length.isdecimal() else 0) // BYTES_PER_TOKEN)


def _find_used(exchange: Exchange, status: int | None, estimate: int) -> int:
    """Return the number of tokens that a request used: 0 if it was refused, or failed with a 5xx.

    An interrupted stream counts as the estimate of its prompt plus its pieces. A request whose
    client disconnected before the response (`status` is None), or that timed out (504), counts as
    the estimate alone: whether the model had started on it is not known here.
    """
    if exchange.is_counted:
        return exchange.num_tokens
    is_charged = status is None or status < 400 or status == HTTPStatus.GATEWAY_TIMEOUT
    return estimate + exchange.num_tokens if is_charged else 0


async def _refuse(
    refusal: Refusal, buckets: KeyBuckets, scope: Scope, receive: Receive, send: Send
) -> None:
    wait_s = max(1, math.ceil(refusal.retry_after_s))
    message = (
        f"the rate limit of this key is reached: {refusal.limit:,} {refusal.kind} per minute; "
        f"try again in {wait_s} s"
    )
    headers = {"retry-after": str(wait_s), **buckets.describe()}
    body = error_body(429, message, code="rate_limit_exceeded")
    await JSONResponse(body, 429, headers)(scope, receive, send)
