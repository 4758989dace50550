"""Download of a model through the page: a link cannot send the key header that the API requires."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError, RequestRefusedError
from apps.ui.error_messages import describe_error
from apps.ui.protection.access import read_password

ARCHIVE_TYPE = "application/octet-stream"
_UNAVAILABLE = 502


def add_download(app: FastAPI, client: ApiClient) -> None:
    """Add the route that streams the archive of a model with the visitor's key."""

    @app.get("/models/{model_id}/archive")
    async def send_archive(
        request: Request,
        model_id: str,
        kind: Annotated[Literal["tar", "zip"], Query(alias="format")] = "tar",
    ) -> Response:
        key = read_password(request.headers.get("authorization", ""))
        stack = AsyncExitStack()
        try:
            pieces = await stack.enter_async_context(client.models.export(model_id, kind, key))
        except ApiClientError as exc:
            status = exc.status if isinstance(exc, RequestRefusedError) else _UNAVAILABLE
            return PlainTextResponse(describe_error(exc), status)
        return ForwardedDownload(pieces, stack, f"{model_id}.{kind}", ARCHIVE_TYPE)


class ForwardedDownload(StreamingResponse):
    """A response that streams a download, and closes the request to the API at its end.

    If the API ends the stream early, the exception closes the connection to the visitor.
    """

    def __init__(
        self, pieces: AsyncIterator[bytes], stack: AsyncExitStack, name: str, media_type: str
    ) -> None:
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        super().__init__(pieces, media_type=media_type, headers=headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response to one request."""
        async with self._stack:
            await super().__call__(scope, receive, send)
