"""Allowlist of Gradio's routes and inputs: those that the page needs, nothing else.

Gradio mounts about eighty routes whether an application uses them or not. docs/security.md lists
each of them; a test compares that list with the routes that exist.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from contextlib import ExitStack

from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.middleware.body_limit import BodyLimit
from apps.ui.protection.access import read_password
from apps.ui.protection.routes import find_route
from apps.ui.protection.unread_calls import StreamSlots, UnreadCalls
from apps.ui.protection.uploads import UploadFolder

MAX_CALL_BYTES = 100_000
MAX_FORM_BYTES = 100_000  # multipart overhead around the uploaded file
JOIN_ROUTE = "/gradio_api/queue/join"
DATA_ROUTE = "/gradio_api/queue/data"
UPLOAD_ROUTE = "/gradio_api/upload"
APP_ROUTE = "/gradio_api/app_id"
_HEARTBEAT_PREFIX = "/gradio_api/heartbeat/"
SESSION_HASH = re.compile(r"\w{1,100}", re.ASCII)

_SESSION_RULE = "1 to 100 letters, digits or underscores"

# Allowed paths by method, relative to the page's prefix.
OPEN_ROUTES = {
    "GET": re.compile(
        r"/|/(runs|chat|compare|evaluate|classify|models|cluster|api)/?|/theme\.css|/favicon\.ico"
        r"|/(assets|static)/[\w./@%~+-]{1,200}"
        r"|/page-assets/[\w.-]{1,100}|/models/[\w.-]{1,128}/archive"
        r"|/evaluate/[\w-]{1,128}/rows"
        r"|/gradio_api/(app_id|queue/data|heartbeat/\w+)"
    ),
    "POST": re.compile(rf"{JOIN_ROUTE}|{UPLOAD_ROUTE}|/gradio_api/cancel"),
}
OPEN_ROUTES["HEAD"] = OPEN_ROUTES["GET"]


class RouteGuard:
    """Middleware that answers 404 to every route except those of `OPEN_ROUTES`, by `not_found`.

    A function call is read before it is forwarded: it may have at most `MAX_CALL_BYTES`. The
    response is 400 unless its text is valid Unicode, the called function is in `functions`, and
    every file that it names is in `uploads`. An upload requires the permission to write files (else
    403), and is refused with 507 while uploads of more than `max_upload_bytes` await their import.
    The response is 429 to a call if too many results are unread, and to a stream if too many
    streams are open.
    """

    def __init__(
        self,
        app: ASGIApp,
        uploads: UploadFolder,
        max_upload_bytes: int,
        functions: Container[int],
        may_write_files: Callable[[str | None], Awaitable[bool]],
        unread: UnreadCalls,
        not_found: ASGIApp | None = None,
    ) -> None:
        self.app = app
        self._not_found = not_found or _refuse(404, "not found")
        self._unread = unread
        self._slots = StreamSlots()
        self._functions = functions
        self.uploads = uploads
        self.may_write_files = may_write_files
        self._max_waiting_bytes = max_upload_bytes
        self._calls = BodyLimit(self._check_call, MAX_CALL_BYTES)
        self._uploads = BodyLimit(app, max_upload_bytes + MAX_FORM_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then forward it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        route = find_route(scope)
        if scope["type"] != "http":
            await _refuse(404, "not found")(scope, receive, send)
        elif not is_open(scope["method"], route):
            await self._not_found(scope, receive, send)
        elif route == UPLOAD_ROUTE:
            await self._accept_upload(scope, receive, send)
        elif scope["method"] == "POST":
            await self._calls(scope, receive, send)
        elif route == DATA_ROUTE and not SESSION_HASH.fullmatch(_read_session(scope)):
            await _refuse(400, f"session_hash must be {_SESSION_RULE}")(scope, receive, send)
        elif route == APP_ROUTE and self._find_refusal(scope):
            await _refuse(429, "too many tabs of the page are open")(scope, receive, send)
        elif route == DATA_ROUTE or route.startswith(_HEARTBEAT_PREFIX):
            await self._open_stream(scope, receive, send, is_data=route == DATA_ROUTE)
        else:
            await self.app(scope, receive, send)

    def _find_refusal(self, scope: Scope) -> str | None:
        """Return why no more streams are opened for a request's key; None if they are.

        A page that has lost its connection would be loaded again and again without this answer.
        """
        return self._slots.find_refusal(_read_key(scope))

    async def _open_stream(
        self, scope: Scope, receive: Receive, send: Send, *, is_data: bool
    ) -> None:
        """Send a stream that stays open as long as its browser tab, unless too many are open."""
        if reason := self._find_refusal(scope):
            await _refuse(429, reason)(scope, receive, send)
            return
        key = _read_key(scope)
        with self._slots.count_stream(key), ExitStack() as stack:
            if is_data:
                stack.enter_context(self._unread.read(_read_session(scope)))
            await self.app(scope, receive, send)

    async def _accept_upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept an upload if the key permits it and not too many uploads await their import."""
        key = _read_key(scope)
        if not await self.may_write_files(key):
            message = "this key may not upload files"
            await _refuse(403, message)(scope, receive, send)
        elif await asyncio.to_thread(self.uploads.count_bytes) > self._max_waiting_bytes:
            message = "too many uploads are queued for import; try again later"
            await _refuse(507, message)(scope, receive, send)
        else:
            await self._uploads(scope, receive, send)

    async def _check_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        if Headers(scope=scope).get("content-encoding"):
            await _refuse(415, "the body must not be compressed")(scope, receive, send)
            return
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return
        if fault := find_fault(body, self.uploads.has_upload, self._functions):
            await _refuse(400, fault)(scope, receive, send)
            return
        is_join = find_route(scope) == JOIN_ROUTE
        if is_join and (reason := self._unread.add(json.loads(body)["session_hash"])):
            await _refuse(429, reason)(scope, receive, send)
            return
        await self.app(scope, _replay(body, receive), send)


def is_open(method: str, route: str) -> bool:
    """Return whether a browser may request a route."""
    pattern = OPEN_ROUTES.get(method)
    return pattern is not None and pattern.fullmatch(route) is not None


def find_fault(
    body: bytes, is_upload: Callable[[str], bool], functions: Container[int]
) -> str | None:
    """Return why a call, or the cancellation of one, is refused; None if it is accepted.

    Gradio answers 500 to unexpected ids of functions and sessions, and treats any object with a
    "path" as a file, in the input of any component.
    """
    try:
        call = json.loads(body)
        json.dumps(call, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "the body contains half of a surrogate pair"
    except (ValueError, RecursionError):
        return "the body is not JSON"
    if not isinstance(call, dict):
        return f"the body is a JSON {type(call).__name__}, expected an object"
    function, session = call.get("fn_index"), call.get("session_hash")
    if not isinstance(session, str) or not SESSION_HASH.fullmatch(session):
        return f"session_hash must be {_SESSION_RULE}"
    if type(function) is not int or function not in functions:
        return f"the page has no function {str(function)[:40]!r}; reload the page"
    for entry in _walk(call):
        path = entry.get("path")
        if path is not None and not (isinstance(path, str) and is_upload(path)):
            return "the call names a file that was not uploaded to this page"
    return None


def _read_key(scope: Scope) -> str | None:
    return read_password(Headers(scope=scope).get("authorization", ""))


def _read_session(scope: Scope) -> str:
    """Return the session of an event stream; empty if the query names none."""
    return QueryParams(scope.get("query_string", b"")).get("session_hash", "")


def _walk(value: object) -> Iterator[Mapping[str, object]]:
    """Yield all objects in a JSON value."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            yield current
            pending.extend(current.values())
        elif isinstance(current, list):
            pending.extend(current)


def _refuse(status: int, message: str) -> ASGIApp:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            # Gradio's script shows `detail`.
            await JSONResponse({"detail": message}, status)(scope, receive, send)

    return refuse


def _replay(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """Return a `receive` that first replays the body, then receives from the client."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again
