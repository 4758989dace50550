"""Log lines for all requests, and audit log lines for changes and refused requests."""

import asyncio
import json
import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.access.audit import AuditEntry, AuditLog
from apps.access.exchange import Exchange, begin_exchange
from apps.access.roles import Permission
from apps.middleware.proxy_limits import REQUEST_ID
from storage.layout import new_id
from system.threads import DedicatedThread

logger = logging.getLogger(__name__)

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_READING = frozenset({Permission.GENERATE, Permission.READ_FILES})
"""Permissions whose requests change nothing, whatever their method."""
_UNLOGGED_PATHS = frozenset({"/healthz", "/livez", "/readyz"})  # polled constantly
_MAX_ANSWER_BYTES = 1 << 16
"""Longest response body that is searched for the id of a created object."""
_MAX_PATH_CHARACTERS = 200
_REFUSED_WEBSOCKET_STATUS = 403  # a server's response if it is closed before it is accepted
_MADE_OBJECTS = frozenset({"evaluation", "file", "fine_tuning.job", "model"})
"""Values of `object` in responses to a POST that describe a created object."""
_WRITING = DedicatedThread("audit")


class RequestLog:
    """The outermost middleware: sets the id of a request, and logs the outcome.

    The audit line of a change is written before the response is sent. The id is that of the header
    `x-request-id`, which Serve's proxy sets on every request and response, except for files that it
    sends from its cache; without Serve, this middleware does so.
    """

    def __init__(self, app: ASGIApp, audit: AuditLog | None) -> None:
        self.app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request and log it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        exchange = Exchange(given if REQUEST_ID.fullmatch(given) else new_id("req"))
        begin_exchange(scope, exchange)
        answer = _AuditedAnswer(scope, send, exchange, self._audit, shows_id=not given)
        began = time.monotonic()
        try:
            await self.app(scope, receive, answer.send)
        except BaseException:
            await answer.end()
            raise
        else:
            await answer.end()
        finally:
            _log(scope, exchange, answer.status, time.monotonic() - began)


class _AuditedAnswer:
    """A response; if it is audited, it is held back until its line is in the audit log."""

    def __init__(
        self,
        scope: Scope,
        send: Send,
        exchange: Exchange,
        audit: AuditLog | None,
        *,
        shows_id: bool,
    ) -> None:
        self._scope, self._send, self._exchange, self._audit = scope, send, exchange, audit
        self._shows_id = shows_id
        self._start: Message | None = None
        self._is_written = False
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        """Forward a message; the first two of an audited response after its line is written."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._shows_id:
                MutableHeaders(scope=message)["x-request-id"] = self._exchange.request_id
            if not self._is_written and _is_audited(self._scope, self._exchange):
                self._start = message
                return
        elif message["type"] == "http.response.body" and self._start is not None:
            self._find_created(message.get("body", b""))
            await self.end()
        elif message["type"] == "websocket.close" and self.status is None:
            self.status = _REFUSED_WEBSOCKET_STATUS
            await self.end()
        await self._send(message)

    async def end(self) -> None:
        """Write the line unless it is written, then send the message that was held back."""
        if not self._is_written and _is_audited(self._scope, self._exchange):
            self._is_written = True
            await self._write()
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)

    def _find_created(self, body: bytes) -> None:
        """Record the id of a created object from a response to a POST that is one JSON object.

        An id that is also in the path belongs to a changed object, not to a created one.
        """
        exchange = self._exchange
        is_refused = self.status is None or self.status >= 400 or exchange.created is not None
        if is_refused or self._scope["method"] != "POST" or len(body) > _MAX_ANSWER_BYTES:
            return
        try:
            content = json.loads(body)
        except ValueError:
            return
        is_made = isinstance(content, dict) and content.get("object") in _MADE_OBJECTS
        found = content.get("id") if is_made else None
        if isinstance(found, str) and found not in (exchange.subject or "").split("/"):
            exchange.created = found
            exchange.subject = exchange.subject or found

    async def _write(self) -> None:
        if self._audit is None:
            return
        exchange, principal = self._exchange, self._exchange.principal
        has_failed = self.status is not None and 400 <= self.status < 500
        if exchange.refusal is not None or has_failed:
            key_id = (principal.key_id or principal.name) if principal else None
            if not self._audit.samples_failure(key_id):
                return
        client = self._scope.get("client")
        entry = AuditEntry(
            request_id=exchange.request_id,
            key=principal.name if principal else None,
            key_id=principal.key_id if principal else None,
            role=principal.role.value if principal else None,
            client=client[0] if client else None,
            method=_read_method(self._scope),
            path=self._scope["path"],
            subject=exchange.subject,
            created=exchange.created,
            status=self.status,
            outcome=_find_outcome(exchange, self.status),
            reason=exchange.refusal,
        )
        await asyncio.shield(_WRITING.run(self._audit.write, entry))


def _is_audited(scope: Scope, exchange: Exchange) -> bool:
    if exchange.refusal is not None or exchange.is_change:
        return True
    is_change = scope["method"] not in _SAFE_METHODS and exchange.permission is not None
    return is_change and exchange.permission not in _READING


def _read_method(scope: Scope) -> str:
    return str(scope["method"]) if scope["type"] == "http" else "WEBSOCKET"


def _find_outcome(exchange: Exchange, status: int | None) -> str:
    if exchange.refusal is not None:
        return "refused"
    if status is None:  # the client disconnected; the change may have been made
        return "unanswered"
    return "done" if status < 400 else "failed"


def _log(scope: Scope, exchange: Exchange, status: int | None, took_s: float) -> None:
    """Log a request with its path, never its query."""
    path = scope["path"][:_MAX_PATH_CHARACTERS]
    if path in _UNLOGGED_PATHS and status == 200:
        return
    if not path.isprintable():
        path = repr(path)
    logger.info(
        "%s %s %s %.1f ms key=%s id=%s",
        _read_method(scope),
        path,
        status or "no answer",
        took_s * 1000,
        exchange.principal.name if exchange.principal else "-",
        exchange.request_id,
    )
