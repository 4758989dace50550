"""Requests for the permissions of a key."""

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
