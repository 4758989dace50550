"""`/v1/files`: upload, list, show, preview and delete files of rows."""

import asyncio
import json
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse

from apps.access.roles import Permission, requires
from apps.errors import ApiError
from apps.fine_tuning.index.run_lookup import check_file_unneeded
from apps.http_api.dependencies import Services
from apps.http_api.file_upload import IncomingFile
from apps.http_api.pagination import After, cut_page, describe_page
from apps.http_api.routes import ServicesOf

router = APIRouter(prefix="/v1/files")

Training = Annotated[
    str, Query(description="Settings as in 'training' of a job, as a JSON object.")
]

_FORM = {
    "schema": {
        "type": "object",
        "required": ["file", "purpose"],
        "additionalProperties": False,
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "purpose": {"type": "string", "enum": ["fine-tune"]},
        },
    }
}


@router.post(
    "", openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": _FORM}}}
)
@requires(Permission.WRITE_FILES)
async def upload_file(services: ServicesOf, request: Request) -> Mapping[str, object]:
    """Upload a file of rows; the only purpose is 'fine-tune'."""
    incoming = await asyncio.to_thread(
        IncomingFile,
        services.layout,
        services.files,
        services.max_upload_bytes,
        services.limits,
    )
    try:
        await incoming.receive(request.headers.get("content-type", ""), request.stream())
    except BaseException:
        await asyncio.shield(asyncio.to_thread(incoming.close))
        raise
    return await asyncio.shield(asyncio.to_thread(incoming.publish))


@router.get("")
@requires(Permission.READ_JOBS)
async def list_files(
    services: ServicesOf,
    limit: Annotated[
        int, Query(ge=1, le=10_000, description="Maximum number of entries.")
    ] = 10_000,
    after: After = None,
    order: Annotated[Literal["asc", "desc"], Query(description="By age.")] = "desc",
    purpose: Annotated[str | None, Query(description="Only files with this purpose.")] = None,
) -> Mapping[str, object]:
    """List files, by default newest first."""
    files = await asyncio.to_thread(services.files.list_files)
    if order == "asc":
        files.reverse()
    files = [file for file in files if purpose in (None, file["purpose"])]
    page, has_more = cut_page(
        files, lambda file: str(file["id"]), limit, after, descending=order == "desc"
    )
    return describe_page(page, has_more=has_more)


@router.get("/{file_id}")
@requires(Permission.READ_JOBS)
def get_file(services: ServicesOf, file_id: str) -> Mapping[str, object]:
    """Show one file's record."""
    return services.files.get(file_id)


@router.get("/{file_id}/content")
@requires(Permission.READ_FILES)
def get_content(services: ServicesOf, file_id: str) -> FileResponse:
    """Return the content of a file as it was uploaded."""
    path = services.files.find_content(file_id)
    name = services.files.get(file_id)["filename"]
    return FileResponse(path, filename=name, media_type="application/octet-stream")


@router.get("/{file_id}/preview")
@requires(Permission.READ_FILES)
async def preview_file(
    services: ServicesOf,
    file_id: str,
    model: str = "latest",
    rows: Annotated[int, Query(ge=1, le=20)] = 3,
    training: Training = "{}",
) -> Mapping[str, object]:
    """Show the first rows as a model's tokens, and which of the tokens are learned."""
    return await services.fine_tuning.preview(file_id, model, rows, read_settings(training))


def read_settings(text: str) -> Mapping[str, object]:
    """Parse the parameter `training`; raises `ApiError` 400 for anything but an object."""
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        message = f"training is {text[:100]!r}: expected a JSON object of settings"
        raise ApiError(400, message, param="training")
    return settings


@router.delete("/{file_id}")
@requires(Permission.WRITE_FILES)
async def delete_file(services: ServicesOf, file_id: str) -> Mapping[str, object]:
    """Delete a file that no unfinished job or evaluation needs."""
    await asyncio.shield(asyncio.to_thread(_delete_file, services, file_id))
    return {"id": file_id, "object": "file", "deleted": True}


def _delete_file(services: Services, file_id: str) -> None:
    services.files.delete(
        file_id, lambda: check_file_unneeded(services.runs, services.evaluations, file_id)
    )
