"""Requests for models, their transfers from and to the hub, and the aliases that point to them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Literal

from apps.client.connection import ApiConnection, ApiRequest, join_path
from apps.client.errors import RequestRefusedError
from apps.client.model_resources import (
    AliasEvent,
    HubPermissions,
    HubTransfer,
    Model,
    ModelAlias,
    ModelCard,
    ModelMerge,
)
from apps.client.resources import read_resource, read_resources

MODELS_PATH = "/v1/models"
ALIASES_PATH = "/v1/aliases"
TRANSFERS_PATH = "/v1/hub/transfers"
ArchiveFormat = Literal["tar", "zip"]
_MERGE_INTERVAL_S = 1.0
_TRANSFER_INTERVAL_S = 1.0
_FORGOTTEN = ModelMerge(id="", adapter="", status="succeeded")  # the model shows whether it was


class ModelsClient:
    """Lists, shows, imports, merges, exports and deletes models."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def list_all(self) -> list[Model]:
        """List all models, newest first."""
        return read_resources(Model, await self._connection.read_entries(MODELS_PATH))

    async def get(self, model_id: str) -> Model:
        """Return one model, by its id or an alias."""
        request = ApiRequest("GET", join_path(MODELS_PATH, model_id))
        return read_resource(Model, await self._connection.read_object(request))

    async def get_lineage(self, model_id: str) -> Mapping[str, object]:
        """Return the base, data and settings that a model was made from."""
        request = ApiRequest("GET", join_path(MODELS_PATH, model_id, "lineage"))
        return await self._connection.read_object(request)

    async def get_card(self, model_id: str) -> ModelCard:
        """Return the README, files, size and architecture of a model."""
        request = ApiRequest("GET", join_path(MODELS_PATH, model_id, "card"))
        return read_resource(ModelCard, await self._connection.read_object(request))

    async def add(
        self, model_id: str, archive: AsyncIterable[bytes], base_model: str | None = None
    ) -> Model:
        """Upload the archive of an external model, or of an adapter of `base_model`."""
        path = join_path(MODELS_PATH, model_id)
        query = None if base_model is None else {"base_model": base_model}
        request = ApiRequest("PUT", path, query=query, content=archive, kind="transfer")
        return read_resource(Model, await self._connection.read_object(request))

    async def begin_merge(self, adapter_id: str, model_id: str) -> ModelMerge:
        """Start merging an adapter into its base model, a new model."""
        path = join_path(MODELS_PATH, adapter_id, "merge")
        request = ApiRequest("POST", path, json={"model": model_id})
        return read_resource(ModelMerge, await self._connection.read_object(request))

    async def list_merges(self, adapter_id: str) -> list[ModelMerge]:
        """List the merges of an adapter, newest first."""
        path = join_path(MODELS_PATH, adapter_id, "merges")
        return read_resources(ModelMerge, await self._connection.read_entries(path))

    async def merge(self, adapter_id: str, model_id: str) -> Model:
        """Merge an adapter into its base model, and return the new model once it is verified.

        Waits as long as the server merges. Raises `RequestRefusedError` with the reason if that
        failed.
        """
        merge = await self.begin_merge(adapter_id, model_id)
        adapter = merge.adapter  # an alias may move meanwhile
        while merge.is_running:
            await asyncio.sleep(_MERGE_INTERVAL_S)
            found = await self._connection.retry_when_available(lambda: self.list_merges(adapter))
            merge = next((one for one in found if one.id == model_id), _FORGOTTEN)
        if (error := merge.error) is not None:
            raise RequestRefusedError(error.status, merge.status, error.message, error.code)
        return await self.get(model_id)

    async def delete(self, model_id: str) -> Mapping[str, object]:
        """Delete a model that is not in use; return the response."""
        request = ApiRequest("DELETE", join_path(MODELS_PATH, model_id))
        return await self._connection.read_object(request)

    async def verify(self, model_id: str) -> Mapping[str, object]:
        """Compare every file of a model with what was published; return the response."""
        path = join_path(MODELS_PATH, model_id, "verify")
        return await self._connection.read_object(ApiRequest("POST", path, kind="transfer"))

    @asynccontextmanager
    async def export(
        self, model_id: str, archive_format: ArchiveFormat, key: str | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """Stream a model as one archive; with `key` in place of the client's key."""
        path = join_path(MODELS_PATH, model_id, "archive")
        query = {"format": archive_format}
        request = ApiRequest("GET", path, query=query, key=key, kind="transfer")
        async with self._connection.stream(request) as response:
            yield response.aiter_bytes()


class HubClient:
    """Has the server install models of the hub and push models to it, where that is permitted."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def get_permissions(self) -> HubPermissions:
        """Return what may be installed and pushed."""
        request = ApiRequest("GET", "/v1/hub")
        return read_resource(HubPermissions, await self._connection.read_object(request))

    async def install(
        self,
        source: str,
        *,
        revision: str | None = None,
        model_id: str | None = None,
        base_model: str | None = None,
    ) -> HubTransfer:
        """Start installing a model; by default its id is the last part of `source`."""
        given = {"source": source, "revision": revision, "id": model_id, "base_model": base_model}
        body = {name: value for name, value in given.items() if value is not None}
        request = ApiRequest("POST", f"{MODELS_PATH}/install", json=body)
        return read_resource(HubTransfer, await self._connection.read_object(request))

    async def push(self, model_id: str, repository: str, *, private: bool = True) -> HubTransfer:
        """Start pushing a model to a repository, which is created if it does not exist."""
        body = {"repository": repository, "private": private}
        request = ApiRequest("POST", join_path(MODELS_PATH, model_id, "push"), json=body)
        return read_resource(HubTransfer, await self._connection.read_object(request))

    async def list_transfers(self) -> list[HubTransfer]:
        """List the last installations and pushes, newest first."""
        return read_resources(HubTransfer, await self._connection.read_entries(TRANSFERS_PATH))

    async def get_transfer(self, transfer_id: str) -> HubTransfer:
        """Return an installation or a push."""
        request = ApiRequest("GET", join_path(TRANSFERS_PATH, transfer_id))
        return read_resource(HubTransfer, await self._connection.read_object(request))

    async def cancel(self, transfer_id: str) -> HubTransfer:
        """Cancel an installation or a push."""
        request = ApiRequest("POST", join_path(TRANSFERS_PATH, transfer_id, "cancel"))
        return read_resource(HubTransfer, await self._connection.read_object(request))

    async def wait(
        self, transfer: HubTransfer, report: Callable[[HubTransfer], None] = lambda _: None
    ) -> HubTransfer:
        """Wait for the end of a transfer; `report` is called with each of its states.

        Raises `RequestRefusedError` with the reason if it failed.
        """
        while transfer.is_running:
            report(transfer)
            await asyncio.sleep(_TRANSFER_INTERVAL_S)
            transfer_id = transfer.id
            transfer = await self._connection.retry_when_available(
                lambda: self.get_transfer(transfer_id)  # noqa: B023 - called at once
            )
        if (error := transfer.error) is not None:
            raise RequestRefusedError(error.status, transfer.status, error.message, error.code)
        return transfer


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
