"""Access control for an application of another library, such as Ray's ingress for LLMs."""

from starlette.types import ASGIApp, Receive, Scope, Send

from apps.access.audit import AuditLog
from apps.access.gate import Gate, read_api_key
from apps.access.keys import KeyStore
from apps.middleware.audit import RequestLog
from apps.middleware.auth import AccessControl
from apps.middleware.body_limit import MAX_TEXT_BYTES, BodyLimit
from storage.layout import open_storage


class AdminGuard:
    """Middleware that accepts only the role `admin`, and writes refusals into the audit log.

    Keys of other roles are for the API, whose routes check their permissions. The API also rotates
    the log. Create it in the replica, because it reads the keys.
    """

    def __init__(self, app: ASGIApp, storage: str, require_key: bool) -> None:
        layout = open_storage(storage)
        gate = Gate(read_api_key(), KeyStore(layout), require_key=require_key)
        guarded = AccessControl(BodyLimit(app, MAX_TEXT_BYTES), gate)
        self.app = RequestLog(guarded, AuditLog(layout, max_bytes=None))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then forward it."""
        await self.app(scope, receive, send)
