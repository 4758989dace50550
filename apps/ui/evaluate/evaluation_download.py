"""Download of an evaluation's rows as CSV: a link cannot send the key that the API requires."""

import re
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import PlainTextResponse, Response

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError, RequestRefusedError
from apps.client.evaluations import RowFilter
from apps.ui.error_messages import describe_error
from apps.ui.models.model_download import ForwardedDownload
from apps.ui.protection.access import read_password

CSV_TYPE = "text/csv; charset=utf-8"
_UNAVAILABLE = 502
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)


def add_row_download(app: FastAPI, client: ApiClient) -> None:
    """Add the route that sends the rows of an evaluation with the visitor's key."""

    @app.get("/evaluate/{evaluation_id}/rows")
    async def send_rows(
        request: Request,
        evaluation_id: str,
        chosen: Annotated[RowFilter, Query(alias="filter")] = "all",
    ) -> Response:
        key = read_password(request.headers.get("authorization", ""))
        stack = AsyncExitStack()
        try:
            pieces = await stack.enter_async_context(
                client.evaluations.download_csv(evaluation_id, chosen, key)
            )
        except ApiClientError as exc:
            status = exc.status if isinstance(exc, RequestRefusedError) else _UNAVAILABLE
            return PlainTextResponse(describe_error(exc), status)
        name = _UNSAFE.sub("_", f"{evaluation_id}-{chosen}.csv")
        return ForwardedDownload(pieces, stack, name, CSV_TYPE)
