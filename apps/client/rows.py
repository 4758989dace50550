"""Requests for the rows of a file: pages, statistics, faulty and equal rows."""

import json
from collections.abc import Mapping
from typing import Literal

from apps.client.connection import ApiConnection, ApiRequest, join_path
from apps.client.files import FILES_PATH
from apps.client.resources import read_resource, read_resources
from apps.client.row_resources import FileRowPage, FileStatistics, RowFinding

Training = Mapping[str, object]
FindingList = Literal["faults", "duplicates"]


class RowsClient:
    """Reads the rows of files."""

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
