"""Requests for the description of the API itself."""

from collections.abc import Mapping

from apps.client.connection import ApiConnection, ApiRequest


class DescriptionClient:
    """Reads what requests the API answers."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def read(self, key: str | None = None) -> Mapping[str, object]:
        """Return the OpenAPI description; `key` is the client's if it is None."""
        request = ApiRequest("GET", "/openapi.json", key=key)
        return await self._connection.read_object(request)
