"""The client of Tuneserve's HTTP API, for the page and the command line."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

import httpx

from apps.client.access import AccessClient, DescriptionClient
from apps.client.cluster import ClusterClient
from apps.client.connection import DEFAULT_TIMEOUTS, ApiConnection, ClientTimeouts
from apps.client.evaluations import EvaluationsClient
from apps.client.files import FilesClient, RowsClient
from apps.client.job_outputs import JobOutputsClient
from apps.client.jobs import JobsClient
from apps.client.models import AliasesClient, HubClient, ModelsClient
from apps.client.text import TextClient

Result = TypeVar("Result")


class ApiClient:
    """The API at a URL, by resource; requests raise only `ApiClientError`s.

    `find_key` returns the key for the current call. `uses_proxies` is described by `ApiConnection`.
    """

    def __init__(
        self,
        url: str,
        find_key: Callable[[], str | None] = lambda: None,
        *,
        timeouts: ClientTimeouts = DEFAULT_TIMEOUTS,
        uses_proxies: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = ApiConnection(
            url, find_key, timeouts=timeouts, uses_proxies=uses_proxies, transport=transport
        )
        self.access = AccessClient(self._connection)
        self.description = DescriptionClient(self._connection)
        self.jobs = JobsClient(self._connection)
        self.job_outputs = JobOutputsClient(self._connection)
        self.files = FilesClient(self._connection)
        self.rows = RowsClient(self._connection)
        self.models = ModelsClient(self._connection)
        self.hub = HubClient(self._connection)
        self.aliases = AliasesClient(self._connection)
        self.cluster = ClusterClient(self._connection)
        self.evaluations = EvaluationsClient(self._connection)
        self.text = TextClient(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def retry_when_available(self, send: Callable[[], Awaitable[Result]]) -> Result:
        """Send a request, and send it again if the API was away; see `ApiConnection`."""
        return await self._connection.retry_when_available(send)
