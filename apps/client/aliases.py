"""Requests for aliases."""

from collections.abc import Mapping

from apps.client.connection import ApiConnection, ApiRequest, join_path
from apps.client.model_resources import AliasEvent, ModelAlias
from apps.client.resources import read_resource, read_resources

ALIASES_PATH = "/v1/aliases"


class AliasesClient:
    """Lists, moves and removes aliases."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def list_all(self) -> list[ModelAlias]:
        """List all aliases by name."""
        return read_resources(ModelAlias, await self._connection.read_entries(ALIASES_PATH))

    async def list_events(self, alias: str) -> list[AliasEvent]:
        """List what the generator did when an alias moved, oldest first."""
        path = join_path(ALIASES_PATH, alias, "events")
        return read_resources(AliasEvent, await self._connection.read_entries(path))

    async def point(self, alias: str, model_id: str) -> ModelAlias:
        """Point an alias to a model."""
        request = ApiRequest("PUT", join_path(ALIASES_PATH, alias), json={"model": model_id})
        return read_resource(ModelAlias, await self._connection.read_object(request))

    async def roll_back(self, alias: str) -> ModelAlias:
        """Point an alias to its previous model."""
        request = ApiRequest("POST", join_path(ALIASES_PATH, alias, "rollback"))
        return read_resource(ModelAlias, await self._connection.read_object(request))

    async def remove(self, alias: str) -> Mapping[str, object]:
        """Remove an alias, not the model; return the response."""
        request = ApiRequest("DELETE", join_path(ALIASES_PATH, alias))
        return await self._connection.read_object(request)
