"""`/v1/models`: list, show, import, verify, merge, export and delete models."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Literal, NotRequired, TypedDict

from fastapi import APIRouter, Query, Request
from pydantic import Field

from apps.access.exchange import record_creation
from apps.access.roles import Permission, requires
from apps.bundled import DEMONSTRATION_MODEL
from apps.errors import ApiError
from apps.fine_tuning.index.merge_notes import MergeNote, read_merges
from apps.fine_tuning.index.run_lookup import (
    check_new_model,
    delete_unneeded_model,
    require_lineage,
)
from apps.http_api.closing_response import ClosingResponse
from apps.http_api.dependencies import Services
from apps.http_api.json_body import JsonBody
from apps.http_api.model_import import IncomingModel
from apps.http_api.model_merge import begin_merge
from apps.http_api.routes import ServicesOf, describe_body
from serving.errors import ModelNotFoundError
from serving.openai.protocol import MAX_MODEL_CHARACTERS, RequestPart, parse_part
from serving.store.aliases import Alias, find_names
from serving.store.export import ArchiveFormat, stream_archive
from serving.store.model_reader import find_roots
from serving.store.stored_model import StoredModel
from storage.durable import DamagedDirectoryError
from storage.versioned_json import NewerFormatError
from system.threads import DedicatedThread

router = APIRouter(prefix="/v1/models")

_IMPORTS = DedicatedThread("import-model")
_VERIFICATIONS = DedicatedThread("verify-model")
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ARCHIVE = {
    "required": True,
    "description": "A tar or zip archive of the model's folder, with any content-type.",
    "content": {"application/octet-stream": _BINARY},
}


@router.get("")
@requires(Permission.READ_MODELS)
def list_models(services: ServicesOf) -> Mapping[str, object]:
    """List all models, newest first."""
    models = sorted(services.models.list_models(), key=lambda model: model.created_at, reverse=True)
    aliases = services.models.read_aliases()
    roots = find_roots(models)
    return {
        "object": "list",
        "data": [_describe(services, model, aliases, roots[model.id]) for model in models],
    }


@router.get("/{model_id}")
@requires(Permission.READ_MODELS)
def get_model(services: ServicesOf, model_id: str) -> Mapping[str, object]:
    """Show one model, by its id or an alias."""
    return describe_model(services, services.models.resolve(model_id))


@router.get("/{model_id}/lineage")
@requires(Permission.READ_MODELS)
def get_lineage(services: ServicesOf, model_id: str) -> Mapping[str, object]:
    """Show a model's lineage: base, data, settings, step, packages; empty if unknown."""
    lineage = require_lineage(services.models.resolve(model_id))
    return lineage.model_dump(mode="json", exclude_unset=True)


@router.put("/{model_id}", openapi_extra={"requestBody": _ARCHIVE})
@requires(Permission.ADMINISTER)
async def put_model(
    services: ServicesOf,
    model_id: str,
    request: Request,
    base_model: Annotated[
        str | None,
        Query(
            description="Id or alias of the base model of an adapter, unless its lineage names it; "
            "not for complete models."
        ),
    ] = None,
) -> Mapping[str, object]:
    """Import an external model or adapter; the body is a tar or zip archive of its folder."""
    # Checked before the large body is received.
    await asyncio.to_thread(check_new_model, services.layout, services.runs, model_id)
    base_id = await asyncio.to_thread(find_base, services, base_model)
    incoming = await asyncio.to_thread(
        IncomingModel, services.layout, services.model_sizes, services.limits
    )
    try:
        await incoming.receive(request.stream())
    except BaseException:
        await asyncio.shield(asyncio.to_thread(incoming.close))
        raise
    try:
        # The import is completed even if the client disconnects.
        model = await asyncio.shield(_IMPORTS.run(incoming.publish, model_id, base_id))
    except FileExistsError as exc:
        raise ApiError(409, str(exc), param="model") from None
    return await asyncio.to_thread(describe_model, services, model)


@router.post("/{model_id}/verify")
@requires(Permission.READ_WEIGHTS)
async def verify_model(services: ServicesOf, model_id: str) -> Mapping[str, object]:
    """Compare every file of a model with what was published; a 409 names the first difference."""
    model = await asyncio.to_thread(services.models.resolve, model_id)
    try:
        await _VERIFICATIONS.run(model.verify)
    except DamagedDirectoryError as exc:
        raise ApiError(409, str(exc), param="model", code="model_damaged") from exc
    except NewerFormatError as exc:
        message = f"model {model.id!r} needs a newer version of Tuneserve: {exc.reason}"
        raise ApiError(409, message, param="model", code="newer_format") from exc
    return {"id": model.id, "object": "model.verification", "verified": True}


class Merging(RequestPart):
    """The body of a merge."""

    model: str = Field(
        min_length=1,
        max_length=MAX_MODEL_CHARACTERS,
        description="Id of the new model.",
    )


@router.post("/{model_id}/merge", status_code=202, openapi_extra=describe_body(Merging))
@requires(Permission.WRITE_JOBS)
async def merge_model(services: ServicesOf, model_id: str, body: JsonBody) -> Mapping[str, object]:
    """Start merging an adapter into its base model: a complete model, published once verified."""
    new_id = parse_part(Merging, body.value).model
    adapter = await asyncio.to_thread(services.models.resolve, model_id)
    record_creation(new_id)
    note = await asyncio.to_thread(begin_merge, services, adapter, new_id)
    return _describe_merge(note)


@router.get("/{model_id}/merges")
@requires(Permission.READ_MODELS)
def list_merges(services: ServicesOf, model_id: str) -> Mapping[str, object]:
    """List the merges of an adapter, newest first: those in progress, and how others ended."""
    adapter = services.models.resolve(model_id)
    notes = read_merges(services.layout, adapter.id)
    return {"object": "list", "data": [_describe_merge(note) for note in notes]}


@router.get("/{model_id}/archive")
@requires(Permission.READ_WEIGHTS)
def get_archive(
    services: ServicesOf,
    model_id: str,
    kind: Annotated[ArchiveFormat, Query(alias="format")] = "tar",
) -> ClosingResponse:
    """Send a model as one archive; the response is 500 if its files differ from the published ones.

    If damage is found while sending, the connection is closed: a complete archive is intact.
    """
    model = services.models.resolve(model_id)
    try:
        pieces = stream_archive(model, kind)
    except DamagedDirectoryError as exc:
        message = f"the model is damaged on the server: {exc}"
        raise ApiError(500, message, param="model", code="model_damaged") from exc
    return ClosingResponse(
        pieces,
        media_type="application/zip" if kind == "zip" else "application/x-tar",
        headers={"content-disposition": f'attachment; filename="{model.id}.{kind}"'},
    )


@router.delete("/{model_id}")
@requires(Permission.ADMINISTER)
async def delete_model(services: ServicesOf, model_id: str) -> Mapping[str, object]:
    """Delete a model that no alias, unfinished job or evaluation, or answer needs."""
    await asyncio.to_thread(
        delete_unneeded_model, services.layout, services.runs, services.evaluations, model_id
    )
    return {"id": model_id, "object": "model", "deleted": True}


class ModelObject(TypedDict):
    """A model as the API shows it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    aliases: list[str]
    task: str
    base: bool
    demonstration: bool
    run_id: str | None
    checkpoint_step: int | None
    kind: Literal["model", "adapter"]
    base_model: NotRequired[str]
    bytes: int
    tuned_from: str | None
    data: str | None
    metrics: Mapping[str, float]


def _describe_merge(note: MergeNote) -> Mapping[str, object]:
    return {"object": "model.merge", **note.model_dump(mode="json"), "created": int(note.created)}


def find_base(services: Services, name: str | None) -> str | None:
    """Return the id of the base model that a request names; raises `ApiError` for no model."""
    if name is None:
        return None
    try:
        model = services.models.resolve(name)
    except ModelNotFoundError as exc:
        raise ApiError(400, exc.message, param="base_model", code=exc.code) from exc
    if model.is_adapter:
        raise ApiError(
            400,
            f"base_model is {name!r}, which is an adapter itself; expected a complete model",
            param="base_model",
        )
    return model.id


def describe_model(services: Services, model: StoredModel) -> ModelObject:
    """Return a model in OpenAI's format, with its aliases and its origin."""
    root = services.models.reader.find_root(model)
    return _describe(services, model, services.models.read_aliases(), root)


def _describe(
    services: Services, model: StoredModel, aliases: Mapping[str, Alias], root: str
) -> ModelObject:
    is_base = model.lineage.run_id is None and model.lineage_fault is None
    described: ModelObject = {
        "id": model.id,
        "object": "model",
        "created": model.created_at,
        "owned_by": "tuneserve",
        "aliases": find_names(aliases, model.id),
        "task": model.task,
        "base": is_base and not model.is_adapter,
        "demonstration": root == DEMONSTRATION_MODEL,
        "run_id": model.lineage.run_id,
        "checkpoint_step": model.lineage.checkpoint_step,
        "kind": "adapter" if model.is_adapter else "model",
        "bytes": services.model_sizes.measure_model(model.id),
        "tuned_from": model.lineage.base_model,
        "data": model.lineage.find_data_name(),
        "metrics": model.lineage.list_metrics(),
    }
    if model.is_adapter and model.lineage.base_model is not None:
        described["base_model"] = model.lineage.base_model
    return described
