"""`/v1/hub`: models of the Hugging Face hub, installed and pushed where the operator permits."""

import asyncio
from collections.abc import Mapping

from fastapi import APIRouter
from pydantic import Field

from apps.access.exchange import record_creation
from apps.access.roles import Permission, requires
from apps.errors import invalid_input
from apps.http_api.json_body import JsonBody
from apps.http_api.routes import ServicesOf, describe_body
from apps.http_api.routes.models import find_base
from apps.hub.hub_ids import MAX_HUB_CHARACTERS, check_hub_id, check_revision
from apps.hub.transfer_notes import (
    TransferNote,
    get_transfer,
    list_transfers,
    request_cancellation,
)
from apps.hub.transfers import begin_install, begin_push
from serving.openai.protocol import MAX_MODEL_CHARACTERS, RequestPart, parse_part

router = APIRouter(prefix="/v1")


class HubInstallation(RequestPart):
    """The body of an installation from the hub."""

    source: str = Field(
        min_length=1,
        max_length=MAX_HUB_CHARACTERS,
        description="Id of the model on the hub, as in 'Qwen/Qwen3-0.6B'; never a path.",
    )
    revision: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_HUB_CHARACTERS,
        description="A branch, a tag, or the hash of a commit; the repository's main branch if "
        "absent.",
    )
    id: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_MODEL_CHARACTERS,
        description="Id of the new model; the last part of `source` if absent.",
    )
    base_model: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_MODEL_CHARACTERS,
        description="Id or alias of the base model of an adapter; not for complete models.",
    )


class HubPush(RequestPart):
    """The body of a push to the hub."""

    repository: str = Field(
        min_length=1,
        max_length=MAX_HUB_CHARACTERS,
        description="Where to push, as in 'my-org/name'; it is created if it does not exist.",
    )
    private: bool = Field(
        True,
        description="Whether a repository that is created is private; a private push to a public "
        "repository is refused.",
    )


@router.post("/models/install", status_code=202, openapi_extra=describe_body(HubInstallation))
@requires(Permission.ADMINISTER)
async def install_model(services: ServicesOf, body: JsonBody) -> Mapping[str, object]:
    """Start installing a model of the hub, where the operator permits: a base for fine-tunes."""
    asked = parse_part(HubInstallation, body.value)
    with invalid_input("source"):
        source = check_hub_id(asked.source)
    with invalid_input("revision"):
        revision = None if asked.revision is None else check_revision(asked.revision)
    model_id = asked.id or source.rpartition("/")[2]
    base_id = await asyncio.to_thread(find_base, services, asked.base_model)
    record_creation(model_id)
    note = await asyncio.to_thread(begin_install, services, source, revision, model_id, base_id)
    return _describe(note)


@router.post("/models/{model_id}/push", status_code=202, openapi_extra=describe_body(HubPush))
@requires(Permission.ADMINISTER)
async def push_model(services: ServicesOf, model_id: str, body: JsonBody) -> Mapping[str, object]:
    """Start pushing a model to the hub with the server's token, where the operator permits."""
    asked = parse_part(HubPush, body.value)
    with invalid_input("repository"):
        repository = check_hub_id(asked.repository, needs_owner=True)
    model = await asyncio.to_thread(services.models.resolve, model_id)
    record_creation(repository)
    note = await asyncio.to_thread(begin_push, services, model, repository, private=asked.private)
    return _describe(note)


@router.get("/hub")
@requires(Permission.ADMINISTER)
async def show_hub(services: ServicesOf) -> Mapping[str, object]:
    """Show which models of the hub may be installed, and where models may be pushed."""
    return {"object": "hub", "install": services.hub.install, "push": services.hub.push}


@router.get("/hub/transfers")
@requires(Permission.ADMINISTER)
def list_hub_transfers(services: ServicesOf) -> Mapping[str, object]:
    """List the last installations and pushes, newest first."""
    return {"object": "list", "data": [_describe(one) for one in list_transfers(services.layout)]}


@router.get("/hub/transfers/{transfer_id}")
@requires(Permission.ADMINISTER)
def get_hub_transfer(services: ServicesOf, transfer_id: str) -> Mapping[str, object]:
    """Show the progress or the result of an installation or a push."""
    return _describe(get_transfer(services.layout, transfer_id))


@router.post("/hub/transfers/{transfer_id}/cancel")
@requires(Permission.ADMINISTER)
def cancel_hub_transfer(services: ServicesOf, transfer_id: str) -> Mapping[str, object]:
    """Cancel an installation or a push; nothing of it is kept in the store."""
    return _describe(request_cancellation(services.layout, transfer_id))


def _describe(note: TransferNote) -> Mapping[str, object]:
    return {"object": "hub.transfer", **note.model_dump(mode="json"), "created": int(note.created)}
