"""Refuse new requests while the application stops, and count those still in progress."""

import re
from collections.abc import Mapping

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.drain import DrainSignal, find_drain_signal
from apps.errors import error_body

HEALTH_PATH = "/healthz"
_LIVENESS_PATH = "/livez"  # a failure would make a supervisor kill a draining process
RETRY_AFTER_S = 30
# These responses end only when the client or the job does; clients resume them by offset.
_ENDLESS_PATHS = re.compile(r".*/heartbeat(/.*)?|/v1/fine_tuning/jobs/[^/]+/(events|logs)/?")


class DrainGate:
    """Middleware of Serve's proxy that answers 503 once the application is stopping.

    While it drains, `/healthz` answers 503 with the number of requests in progress, which
    `tuneserve run` waits for; `/livez` is forwarded. Followed events and logs, and the page's
    heartbeats, do not count.
    """

    def __init__(self, app: ASGIApp, signal: DrainSignal | None = None) -> None:
        self.app = app
        self._signal = signal or find_drain_signal()
        self._num_in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, or refuse it."""
        if scope["type"] != "http" or self._signal is None or scope["path"] == _LIVENESS_PATH:
            await self.app(scope, receive, send)
            return
        if self._signal.is_draining:
            await self._refuse(scope, receive, send)
            return
        if _ENDLESS_PATHS.fullmatch(scope["path"]):
            await self.app(scope, receive, send)
            return
        self._num_in_progress += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._num_in_progress -= 1

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"retry-after": str(RETRY_AFTER_S), "connection": "close"}
        message = "the application is stopping; try again once it has restarted"
        body: Mapping[str, object] = error_body(503, message)
        if scope["path"] == HEALTH_PATH:
            body = {"status": "draining", "requests_in_progress": self._num_in_progress}
        await JSONResponse(body, 503, headers)(scope, receive, send)
