"""Publication of checkpoints on demand: a request for a checkpoint's model name publishes it.

So clients can chat with every checkpoint, and a checkpoint takes the space of a model only after
the first request for it.
"""

import asyncio
import re

from apps.access.exchange import record_creation, record_refusal
from apps.access.gate import Principal
from apps.access.roles import Permission
from apps.errors import ApiError
from apps.fine_tuning.index.run_lookup import find_run, name_export_note, name_model
from apps.fine_tuning.publishing import list_run_checkpoints
from apps.http_api.dependencies import Services
from storage.layout import StorageLayout

WAIT_S = 60.0
_POLL_S = 0.1
_NAME = re.compile(r"(?P<model>.+)-step-(?P<step>\d+)")


async def ensure_model(services: Services, principal: Principal, name: str) -> None:
    """Publish the checkpoint that a model name refers to, unless the model is in the store.

    Does nothing for other names. Waits until the model is in the store. Raises `ApiError` 503 if
    that takes longer than `WAIT_S`, 409 if the publication failed, 403 if the checkpoint is not
    published and the key lacks the permission to publish it.
    """
    if _NAME.fullmatch(name) is None or services.models.find(name) is not None:
        return
    found = await asyncio.to_thread(_find_checkpoint, services, name)
    if found is None:
        return
    job_id, checkpoint_id = found
    if not _is_being_published(services.layout, job_id, name):
        if not principal.may(Permission.WRITE_JOBS):
            reason = principal.explain_refusal(Permission.WRITE_JOBS)
            message = f"{name!r} is a checkpoint that is not published as a model, and {reason}"
            record_refusal("insufficient_permission", name)
            raise ApiError(403, message, param="model", code="insufficient_permission")
        record_creation(name)
        try:
            await services.fine_tuning.publish_checkpoint(job_id, checkpoint_id, name)
        except ApiError as exc:
            if exc.status != 409:  # another request was faster
                raise
    await _wait_for(services, name, job_id)


async def _wait_for(services: Services, name: str, job_id: str) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while services.models.find(name) is None:
        if (
            not _is_being_published(services.layout, job_id, name)
            and services.models.find(name) is None
        ):
            message = f"{name!r} could not be created from its checkpoint; the events of job "
            raise ApiError(409, f"{message}{job_id!r} contain the reason", param="model")
        if asyncio.get_running_loop().time() > deadline:
            message = f"{name!r} is being created from its checkpoint; try again in a moment"
            raise ApiError(503, message, param="model", code="model_not_ready")
        await asyncio.sleep(_POLL_S)


def _is_being_published(layout: StorageLayout, job_id: str, name: str) -> bool:
    return name_export_note(find_run(layout, job_id), name).exists()


def _find_checkpoint(services: Services, name: str) -> tuple[str, str] | None:
    """Find the job and the checkpoint that a model name refers to."""
    parts = _NAME.fullmatch(name)
    assert parts is not None
    for run, record in services.runs.scan().runs:
        if name_model(record) == parts["model"]:
            for checkpoint in list_run_checkpoints(run):
                if checkpoint["step_number"] == int(parts["step"]):
                    return record.id, str(checkpoint["id"])
    return None
