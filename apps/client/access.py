"""Requests for the permissions of a key, and for the description of the API."""

from collections.abc import Mapping

from apps.client.connection import ApiConnection, ApiRequest
from apps.client.resources import Access, read_resource


class AccessClient:
    """Shows what a key may do."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def get(self, key: str | None = None, *, keeps_connection: bool = True) -> Access:
        """Return the permissions of a key, by default of the client's."""
        headers = None if keeps_connection else {"connection": "close"}
        request = ApiRequest("GET", "/v1/access", headers=headers, key=key)
        return read_resource(Access, await self._connection.read_object(request))


class DescriptionClient:
    """Reads what requests the API answers."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def read(self, key: str | None = None) -> Mapping[str, object]:
        """Return the OpenAPI description; `key` is the client's if it is None."""
        request = ApiRequest("GET", "/openapi.json", key=key)
        return await self._connection.read_object(request)
