"""Middleware that completes Gradio's documents, lets browsers keep its files, and answers 404."""

from fastapi import Request
from fastapi.responses import HTMLResponse, PlainTextResponse
from gradio import Blocks
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.middleware.cached_files import CACHED_FILE_HEADERS
from apps.ui.frame.document import complete_document, render_document
from apps.ui.frame.first_views import FirstViews
from apps.ui.protection.routes import find_route

_GRADIO_MARK = b"<gradio-app"
_NOT_FOUND = (
    "<p>There is no page at this address.</p>"
    '<p><a href="./">Start a fine-tune</a> · <a href="./runs">Runs</a> · '
    '<a href="./chat">Chat</a></p>'
)


class PageFrame:
    """Middleware that gives Gradio's documents our head and header, and their first content.

    Gradio's scripts have a hash of their content in their names, so browsers keep them without
    asking again.
    """

    def __init__(self, app: ASGIApp, blocks: Blocks, first_views: FirstViews) -> None:
        self.app = app
        self._blocks = blocks
        self._first_views = first_views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, and complete its response."""
        route = find_route(scope) if scope["type"] == "http" else ""
        if not route:
            await self.app(scope, receive, send)
        elif self._is_named_by_content(scope, route):
            await self.app(scope, receive, _let_keep(send))
        elif route.count("/") == 1:
            document = _Document(send, scope, self._first_views)
            await self.app(scope, receive, document.receive_message)
        else:
            await self.app(scope, receive, send)

    def _is_named_by_content(self, scope: Scope, route: str) -> bool:
        """Return whether a file of Gradio has another address when its content is another."""
        query = scope.get("query_string", b"").decode("latin-1")
        if route == "/theme.css":
            return bool(query == f"v={self._blocks.theme_hash}")
        return route.startswith("/assets/") and not query


def _let_keep(send: Send) -> Send:
    """Return a `send` that lets a browser keep a file that was found."""

    async def send_kept(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] in (200, 304):
            MutableHeaders(scope=message).update(CACHED_FILE_HEADERS)
        await send(message)

    return send_kept


class _Document:
    """One response: a document of Gradio is completed, all others are sent as they are."""

    def __init__(self, send: Send, scope: Scope, first_views: FirstViews) -> None:
        self._send = send
        self._scope = scope
        self._first_views = first_views
        self._start: Message | None = None
        self._body = b""

    async def receive_message(self, message: Message) -> None:
        """Receive a message of the response."""
        if message["type"] == "http.response.start":
            kind = MutableHeaders(scope=message).get("content-type", "")
            if kind.startswith("text/html") and message["status"] == 200:
                self._start = message
                return
        elif self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._send_document(self._start)
            return
        await self._send(message)

    async def _send_document(self, start: Message) -> None:
        if _GRADIO_MARK in self._body:
            headers = MutableHeaders(scope=start)
            self._body = (await self._complete(headers)).encode()
            headers["content-length"] = str(len(self._body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": self._body})

    async def _complete(self, headers: MutableHeaders) -> str:
        path = find_route(self._scope).strip("/")
        html = complete_document(self._body.decode(), path)
        is_filled = self._scope["method"] == "GET" and self._first_views.has(path)
        # A browser that goes back would show the content of a document that it has stored.
        headers["cache-control"] = "no-store" if is_filled else "no-cache"
        return await self._first_views.fill(html, path, Request(self._scope)) if is_filled else html


async def send_not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 404: with a page to a browser that opens an address, else with plain text."""
    request = Request(scope)
    is_page_wanted = request.method in ("GET", "HEAD") and "text/html" in request.headers.get(
        "accept", ""
    )
    base = "../" * (find_route(scope).count("/") - 1) or "./"
    answer = (
        HTMLResponse(render_document("Page not found", None, _NOT_FOUND, base), 404)
        if is_page_wanted
        else PlainTextResponse("not found", 404)
    )
    await answer(scope, receive, send)
