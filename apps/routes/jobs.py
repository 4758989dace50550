"""`/v1/fine_tuning`: fine-tunes in OpenAI's shapes, with metrics and logs beside them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Query
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from apps.errors import not_found
from apps.jobs import describe_event, describe_job
from apps.publishing import list_run_checkpoints
from apps.routes import ServicesOf
from apps.runs import find_run, list_runs

router = APIRouter(prefix="/v1/fine_tuning")

_LOG_BYTES = 64_000

Limit = Annotated[int, Query(ge=1, le=1000, description="Entries at most.")]
After = Annotated[str | None, Query(description="Id of the last entry of the page before.")]
Item = TypeVar("Item")


class Publication(BaseModel):
    """The body of a publication."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, description="Id of the new model; by default made of the job.")


@router.get("/defaults")
async def get_defaults(services: ServicesOf, model: str = "latest") -> dict[str, Any]:
    """Show the settings that a fine-tune of a model has unless told otherwise."""
    return await services.fine_tuning.get_defaults(model)


@router.post("/jobs")
async def create_job(
    services: ServicesOf, body: Annotated[dict[str, Any], Body()]
) -> dict[str, Any]:
    """Check a fine-tune and put it into the queue."""
    return await services.fine_tuning.create(body)


@router.get("/jobs")
async def list_jobs(services: ServicesOf, limit: Limit = 20, after: After = None) -> dict[str, Any]:
    """List jobs, newest first."""
    runs, has_more = cut_page(list_runs(services.layout), lambda pair: pair[1].id, limit, after)
    data = [describe_job(run, record) for run, record in runs]
    return {"object": "list", "data": data, "has_more": has_more}


@router.get("/jobs/{job_id}")
async def get_job(services: ServicesOf, job_id: str) -> dict[str, Any]:
    """Show one job."""
    return describe_job(find_run(services.layout, job_id))


@router.post("/jobs/{job_id}/cancel")
async def cancel_job(services: ServicesOf, job_id: str) -> dict[str, Any]:
    """Stop a job now."""
    return await services.fine_tuning.cancel(job_id)


@router.get("/jobs/{job_id}/events")
async def list_events(
    services: ServicesOf, job_id: str, limit: Limit = 20, after: After = None
) -> dict[str, Any]:
    """List what happened, newest first."""
    newest_first = find_run(services.layout, job_id).read_events()[::-1]
    events, has_more = cut_page(newest_first, lambda event: str(event["id"]), limit, after)
    data = [describe_event(event) for event in events]
    return {"object": "list", "data": data, "has_more": has_more}


@router.get("/jobs/{job_id}/checkpoints")
async def list_checkpoints(
    services: ServicesOf, job_id: str, limit: Limit = 10, after: After = None
) -> dict[str, Any]:
    """List the checkpoints that a job still has, newest first."""
    found = await asyncio.to_thread(list_run_checkpoints, find_run(services.layout, job_id))
    data, has_more = cut_page(found, lambda checkpoint: str(checkpoint["id"]), limit, after)
    return {"object": "list", "data": list(data), "has_more": has_more}


@router.post("/jobs/{job_id}/checkpoints/{checkpoint_id}/publish", status_code=202)
async def publish_checkpoint(
    services: ServicesOf, job_id: str, checkpoint_id: str, body: Publication | None = None
) -> dict[str, Any]:
    """Begin to turn a checkpoint into a model; the job's events tell when it is there."""
    model = body.model if body else None
    return await services.fine_tuning.publish_checkpoint(job_id, checkpoint_id, model)


@router.get("/jobs/{job_id}/metrics")
async def list_metrics(services: ServicesOf, job_id: str) -> dict[str, Any]:
    """List the figures of every optimizer step, oldest first."""
    return {"object": "list", "data": find_run(services.layout, job_id).read_metrics()}


@router.get("/jobs/{job_id}/logs")
async def get_log(services: ServicesOf, job_id: str) -> PlainTextResponse:
    """Give the end of the log as text."""
    return PlainTextResponse(find_run(services.layout, job_id).read_log(_LOG_BYTES))


def cut_page(
    items: Sequence[Item], get_id: Callable[[Item], str], limit: int, after: str | None
) -> tuple[Sequence[Item], bool]:
    """Cut one page out of a list; returns it and whether there is more.

    Raises `ApiError` 404 if `after` is not the id of an entry.
    """
    start = 0
    if after is not None:
        ids = [get_id(item) for item in items]
        if after not in ids:
            raise not_found("entry", after)
        start = ids.index(after) + 1
    return items[start : start + limit], len(items) > start + limit
