"""`/v1/aliases`: names that point to models; promote, roll back, show the history."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal, TypedDict

from fastapi import APIRouter
from pydantic import Field

from apps.access.roles import Permission, requires
from apps.fine_tuning.index.run_lookup import check_unreserved
from apps.http_api.dependencies import Services
from apps.http_api.json_body import JsonBody
from apps.http_api.routes import ServicesOf, describe_body
from serving.openai.protocol import MAX_MODEL_CHARACTERS, RequestPart, parse_part
from serving.store.aliases import Alias, find_alias
from serving.store.handover_log import HandoverLog

router = APIRouter(prefix="/v1/aliases")


class Promotion(RequestPart):
    """The body of a promotion."""

    model: str = Field(
        min_length=1,
        max_length=MAX_MODEL_CHARACTERS,
        description="Id of the new target model.",
    )


@router.get("")
@requires(Permission.READ_MODELS)
def list_aliases(services: ServicesOf) -> Mapping[str, object]:
    """List all aliases by name."""
    aliases = services.models.read_aliases()
    data = [describe_alias(services, name, aliases[name]) for name in sorted(aliases)]
    return {"object": "list", "data": data}


@router.get("/{name}")
@requires(Permission.READ_MODELS)
def get_alias(services: ServicesOf, name: str) -> Mapping[str, object]:
    """Show the model that an alias points to, and all its moves, oldest first."""
    return describe_alias(services, name, find_alias(services.models.read_aliases(), name))


@router.get("/{name}/events")
@requires(Permission.READ_MODELS)
async def list_handover_events(services: ServicesOf, name: str) -> Mapping[str, object]:
    """List the hand-over events of an alias from all generator replicas, oldest first."""
    events = await asyncio.to_thread(HandoverLog(services.layout.store.handovers).read, name)
    data = [{"object": "alias.event", **asdict(event)} for event in events]
    return {"object": "list", "data": data}


@router.put("/{name}", openapi_extra=describe_body(Promotion))
@requires(Permission.ADMINISTER)
async def promote(services: ServicesOf, name: str, body: JsonBody) -> Mapping[str, object]:
    """Point a new or existing alias to a model."""
    promotion = parse_part(Promotion, body.value)
    await asyncio.to_thread(check_unreserved, services.layout, services.runs, name)
    alias = await asyncio.to_thread(services.models.point_alias, name, promotion.model)
    return await asyncio.to_thread(describe_alias, services, name, alias)


@router.post("/{name}/rollback")
@requires(Permission.ADMINISTER)
async def roll_back(services: ServicesOf, name: str) -> Mapping[str, object]:
    """Point an alias to its previous model; a second call goes back one more model."""
    alias = await asyncio.to_thread(services.models.roll_back_alias, name)
    return await asyncio.to_thread(describe_alias, services, name, alias)


@router.delete("/{name}")
@requires(Permission.ADMINISTER)
async def remove_alias(services: ServicesOf, name: str) -> Mapping[str, object]:
    """Remove an alias; the models are kept."""
    await asyncio.to_thread(services.models.remove_alias, name)
    return {"id": name, "object": "alias", "deleted": True}


class AliasMove(TypedDict):
    """A move of an alias; `model` is None if the alias was removed."""

    model: str | None
    at: int
    rollback: bool


class AliasObject(TypedDict):
    """An alias as the API shows it."""

    id: str
    object: Literal["alias"]
    model: str
    rollback_to: str | None
    history: list[AliasMove]


def describe_alias(services: Services, name: str, alias: Alias) -> AliasObject:
    """Return an alias with its history, and the model that a rollback would point it to."""
    earlier = (one for one in alias.list_earlier() if one != alias.model_id)
    return {
        "id": name,
        "object": "alias",
        "model": alias.model_id,
        "rollback_to": next((one for one in earlier if services.models.find(one)), None),
        "history": [
            {"model": move.model_id, "at": move.at, "rollback": move.is_rollback}
            for move in alias.history
        ],
    }
