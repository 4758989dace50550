"""Middleware that completes Gradio's documents, lets browsers keep its files, and answers 404."""

import zlib
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, PlainTextResponse
from gradio import Blocks
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.middleware.cached_files import CACHED_FILE_HEADERS
from apps.ui.frame.document import CONTENT_MARK, complete_document, render_document
from apps.ui.frame.first_views import FirstViews
from apps.ui.protection.routes import find_route

_GRADIO_MARK = b"<gradio-app"
_COMPRESSION_LEVEL = 6
_GZIP_WINDOW_BITS = 31  # with the header of gzip
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
        if _GRADIO_MARK not in self._body:
            await self._send(start)
            await self._send({"type": "http.response.body", "body": self._body})
            return
        path = find_route(self._scope).strip("/")
        views = self._first_views if self._scope["method"] == "GET" else FirstViews()
        scripts = views.list_scripts(path)
        html = complete_document(self._body.decode(), path, views.find(path), scripts)
        if scripts:
            await self._send_parts(start, path, html)
            return
        body = html.encode()
        headers = MutableHeaders(scope=start)
        headers["cache-control"] = "no-cache"
        headers["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})

    async def _send_parts(self, start: Message, path: str, html: str) -> None:
        """Send the part before the first content at once: a browser loads the scripts meanwhile.

        The parts are compressed here, because the middleware that compresses would keep the first.
        """
        before, _, after = html.partition(CONTENT_MARK)
        request = Request(self._scope)
        headers = MutableHeaders(scope=start)
        # A browser that goes back would show the content of a document that it has stored.
        headers["cache-control"] = "no-store"
        del headers["content-length"]
        compressor = None
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            headers.add_vary_header("accept-encoding")
            compressor = zlib.compressobj(_COMPRESSION_LEVEL, wbits=_GZIP_WINDOW_BITS)
        await self._send(start)
        await self._send_part(compressor, before, more_body=True)
        content = await self._first_views.read(path, request)
        await self._send_part(compressor, content + after, more_body=False)

    async def _send_part(self, compressor: Any, text: str, *, more_body: bool) -> None:
        body = text.encode()
        if compressor is not None:
            ending = zlib.Z_SYNC_FLUSH if more_body else zlib.Z_FINISH
            body = compressor.compress(body) + compressor.flush(ending)
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})


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
