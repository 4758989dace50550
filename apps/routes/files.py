"""`/v1/files`: upload, list, look at and delete files of rows."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, UploadFile
from fastapi.responses import FileResponse

from apps.errors import ApiError
from apps.routes import ServicesOf
from apps.runs import list_runs

router = APIRouter(prefix="/v1/files")

_CHUNK_BYTES = 1 << 20


@router.post("")
async def upload_file(
    services: ServicesOf, file: UploadFile, purpose: Annotated[str, Form()]
) -> dict[str, Any]:
    """Take in a file of rows; the only purpose is 'fine-tune'."""
    if purpose != "fine-tune":
        raise ApiError(400, f"purpose is {purpose!r}, expected 'fine-tune'", param="purpose")
    return await services.files.save(
        _read_chunks(file), file.filename or "upload.jsonl", purpose, services.max_upload_bytes
    )


@router.get("")
async def list_files(services: ServicesOf) -> dict[str, Any]:
    """List all files, newest first."""
    files = services.files.list_files()
    return {"object": "list", "data": files, "has_more": False}


@router.get("/{file_id}")
async def get_file(services: ServicesOf, file_id: str) -> dict[str, Any]:
    """Show one file's record."""
    return services.files.get(file_id)


@router.get("/{file_id}/content")
async def get_content(services: ServicesOf, file_id: str) -> FileResponse:
    """Give a file back as it was uploaded."""
    path = services.files.find_content(file_id)
    return FileResponse(path, filename=services.files.get(file_id)["filename"])


@router.get("/{file_id}/preview")
async def preview_file(
    services: ServicesOf,
    file_id: str,
    model: str = "latest",
    rows: Annotated[int, Query(ge=1, le=20)] = 3,
) -> dict[str, Any]:
    """Show how the first rows become a model's tokens, and which of them are learned."""
    return await services.fine_tuning.preview(file_id, model, rows)


@router.delete("/{file_id}")
async def delete_file(services: ServicesOf, file_id: str) -> dict[str, Any]:
    """Delete a file that no waiting or computing job needs."""
    for _, record in list_runs(services.layout):
        if not record.is_final and record.request.get("training_file") == file_id:
            raise ApiError(409, f"job {record.id!r} still needs file {file_id!r}", code="in_use")
    services.files.delete(file_id)
    return {"id": file_id, "object": "file", "deleted": True}


async def _read_chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(_CHUNK_BYTES):
        yield chunk
