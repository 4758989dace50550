"""Requests for uploaded files and their rows."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import BinaryIO, Literal

from apps.client.connection import ApiConnection, ApiRequest, Upload, join_path
from apps.client.resources import File, Preview, read_resource, read_resources
from apps.client.row_resources import FileRowPage, FileStatistics, RowFinding

FILES_PATH = "/v1/files"

Training = Mapping[str, object]
FindingList = Literal["faults", "duplicates"]


class FilesClient:
    """Uploads, lists, shows, downloads and deletes files."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def list_all(self, purpose: str | None = None) -> list[File]:
        """List all files, or those with a purpose, newest first."""
        query = {"purpose": purpose} if purpose else None
        return read_resources(File, await self._connection.read_entries(FILES_PATH, query))

    async def get(self, file_id: str) -> File:
        """Return the record of a file."""
        request = ApiRequest("GET", join_path(FILES_PATH, file_id))
        return read_resource(File, await self._connection.read_object(request))

    async def upload(self, name: str, content: BinaryIO) -> File:
        """Upload a file of rows under a name."""
        request = ApiRequest(
            "POST",
            FILES_PATH,
            form={"purpose": "fine-tune"},
            upload=Upload(name, content),
            kind="transfer",
        )
        return read_resource(File, await self._connection.read_object(request))

    @asynccontextmanager
    async def download(self, file_id: str) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """Stream the content of a file."""
        path = join_path(FILES_PATH, file_id, "content")
        request = ApiRequest("GET", path, kind="transfer")
        async with self._connection.stream(request) as response:
            yield response.aiter_bytes()

    async def delete(self, file_id: str) -> Mapping[str, object]:
        """Delete a file that no job needs; return the response."""
        request = ApiRequest("DELETE", join_path(FILES_PATH, file_id))
        return await self._connection.read_object(request)

    async def preview(
        self,
        file_id: str,
        model: str,
        num_rows: int = 3,
        training: Training | None = None,
    ) -> Preview:
        """Return the first rows of a file as a model's tokens, with the settings in `training`."""
        query = {"model": model, "rows": str(num_rows)}
        if training:
            query["training"] = json.dumps(dict(training))
        request = ApiRequest("GET", join_path(FILES_PATH, file_id, "preview"), query=query)
        return read_resource(Preview, await self._connection.read_object(request))


class RowsClient:
    """Reads the rows of files: pages, statistics, faulty and equal rows."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def read_page(
        self, file_id: str, after: str | None = None, search: str = "", limit: int = 20
    ) -> FileRowPage:
        """Return the rows after a row, or those of them that contain a text."""
        query = {"limit": str(limit), "search": search}
        if after is not None:
            query["after"] = after
        request = ApiRequest("GET", join_path(FILES_PATH, file_id, "rows"), query=query)
        return read_resource(FileRowPage, await self._connection.read_object(request))

    async def get_statistics(
        self, file_id: str, model: str, training: Training | None = None
    ) -> FileStatistics:
        """Return what was counted in all rows, for a model and the settings in `training`."""
        path = join_path(FILES_PATH, file_id, "statistics")
        request = ApiRequest("GET", path, query=_ask(model, training))
        return read_resource(FileStatistics, await self._connection.read_object(request))

    async def list_findings(
        self,
        file_id: str,
        model: str,
        found: FindingList,
        training: Training | None = None,
        limit: int = 20,
    ) -> list[RowFinding]:
        """Return the first faulty or equal rows that the statistics counted."""
        path = join_path(FILES_PATH, file_id, found)
        query = {**_ask(model, training), "limit": str(limit)}
        entries = await self._connection.read_entries(path, query, limit)
        return read_resources(RowFinding, entries)

    async def download_findings(
        self, file_id: str, model: str, found: FindingList, training: Training | None = None
    ) -> str:
        """Return all faulty or equal rows that are listed, as CSV."""
        path = join_path(FILES_PATH, file_id, found)
        request = ApiRequest("GET", path, query={**_ask(model, training), "format": "csv"})
        return (await self._connection.send(request)).text


def _ask(model: str, training: Training | None) -> dict[str, str]:
    settings = {"training": json.dumps(dict(training))} if training else {}
    return {"model": model, **settings}
