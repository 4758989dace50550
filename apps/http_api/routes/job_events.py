"""The events, metrics, checkpoints and log of a job; events and the log can be streamed."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field

from apps.access.roles import Permission, requires
from apps.errors import InvalidInputError
from apps.fine_tuning.index.run_lookup import find_run
from apps.fine_tuning.job_responses import describe_event
from apps.fine_tuning.publishing import list_run_checkpoints, read_checkpoint_step
from apps.http_api.closing_response import ClosingResponse
from apps.http_api.json_body import OptionalJsonBody
from apps.http_api.pagination import After, Limit, cut_page, describe_page
from apps.http_api.routes import ServicesOf, describe_body
from apps.http_api.run_streams import (
    find_log_range,
    find_offset,
    follow_events,
    follow_log,
    has_ended,
    search_log,
)
from serving.openai.protocol import RequestPart, parse_part
from storage.layout import MAX_ID_CHARACTERS
from training.run.folder import RunFolder
from training.run.run_log import RunLog

router = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}")

_LOG_BYTES = 64_000
_MAX_SEARCH_CHARACTERS = 200
_UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Publication(RequestPart):
    """The body of a publication."""

    model: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_ID_CHARACTERS,
        description="Id of the new model; by default derived from the job.",
    )


@router.get("/events", response_model=None)
@requires(Permission.READ_JOBS)
async def list_events(
    services: ServicesOf,
    request: Request,
    job_id: str,
    limit: Limit = 20,
    after: After = None,
    newer_than: Annotated[
        str | None, Query(description="Id of an event; only later events are listed.")
    ] = None,
    stream: Annotated[
        bool, Query(description="Stream events as server-sent events, oldest first.")
    ] = False,
    last_event_id: Annotated[
        str | None,
        Header(description="Id of the last event received; the stream continues after it."),
    ] = None,
) -> Mapping[str, object] | Response:
    """List the events, newest first, or stream them as server-sent events from the first one.

    A stream ends with its job, or at the maximum age in the settings. A client that resumes with
    the id of the last event that it received loses no event; if none are left and the job has
    ended, the response is 204.
    """
    run = find_run(services.layout, job_id)
    if stream or "text/event-stream" in request.headers.get("accept", ""):
        return await _stream_events(run, last_event_id, services.max_stream_age_s)
    page = await asyncio.to_thread(services.events.read_newest, run, limit, after, newer_than)
    return describe_page(list(map(describe_event, page.events)), has_more=page.has_more)


@router.get("/checkpoints")
@requires(Permission.READ_JOBS)
async def list_checkpoints(
    services: ServicesOf, job_id: str, limit: Limit = 10, after: After = None
) -> Mapping[str, object]:
    """List the checkpoints that a job still has, newest first."""
    found = await asyncio.to_thread(list_run_checkpoints, find_run(services.layout, job_id))
    page, has_more = cut_page(
        found,
        lambda checkpoint: str(checkpoint["id"]),
        limit,
        after,
        descending=True,  # older ones may be superseded between two pages
        read_place=partial(read_checkpoint_step, job_id),
    )
    return describe_page(page, has_more=has_more)


@router.post(
    "/checkpoints/{checkpoint_id}/publish",
    status_code=202,
    openapi_extra=describe_body(Publication, is_required=False),
)
@requires(Permission.WRITE_JOBS)
async def publish_checkpoint(
    services: ServicesOf, job_id: str, checkpoint_id: str, body: OptionalJsonBody
) -> Mapping[str, object]:
    """Start publishing a checkpoint as a model; an event of the job reports when it is done."""
    model = parse_part(Publication, body.value).model
    return await services.fine_tuning.publish_checkpoint(job_id, checkpoint_id, model)


@router.get("/metrics")
@requires(Permission.READ_JOBS)
async def list_metrics(
    services: ServicesOf,
    job_id: str,
    after_step: Annotated[int, Query(ge=0, description="Only steps after this one.")] = 0,
    max_points: Annotated[
        int | None,
        Query(
            ge=2, le=100_000, description="Maximum number of entries, with the first and the last."
        ),
    ] = None,
) -> Mapping[str, object]:
    """List the metrics of optimizer steps, oldest first: of every step, or downsampled.

    If downsampled, there is one entry per range of steps, the same entry in every call.
    """
    path = find_run(services.layout, job_id).metrics.path
    data = await asyncio.to_thread(services.metrics.read, path, after_step, max_points)
    return {"object": "list", "data": data}


@router.get("/evaluations")
@requires(Permission.READ_JOBS)
async def list_evaluations(
    services: ServicesOf,
    job_id: str,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of entries.")] = 20,
) -> Mapping[str, object]:
    """List the newest evaluations, newest first, each with the confusion matrix of its classes."""
    run = find_run(services.layout, job_id)
    found = await asyncio.to_thread(run.evaluations.read_newest, limit)
    data = [{"object": "fine_tuning.job.evaluation", **one.model_dump()} for one in found]
    return {"object": "list", "data": data}


@router.get("/logs")
@requires(Permission.READ_JOBS)
async def get_log(
    services: ServicesOf,
    job_id: str,
    tail: Annotated[
        int, Query(ge=0, le=10_000_000, description="Maximum number of bytes, from its end.")
    ] = _LOG_BYTES,
    offset: Annotated[
        int | None,
        Query(
            ge=0,
            description="Offset of the first byte, instead of 'tail'; a removed part is skipped.",
        ),
    ] = None,
    follow: Annotated[
        bool, Query(description="Stream the log while it grows, until the job ends.")
    ] = False,
    search: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=_MAX_SEARCH_CHARACTERS,
            description="Only the last lines with this text, in any case, at most 'tail' bytes; "
            "without 'offset' and 'follow'.",
        ),
    ] = None,
) -> Response:
    """Return the end of the log as text; `x-log-offset` is the offset of its first byte.

    The log keeps at least its last 5 MB. With `follow`, added text is streamed until the job ends,
    the maximum age in the settings is reached, or the client is so slow that the next byte has been
    removed. Request the rest with `offset`: the last `x-log-offset` plus the bytes received.
    """
    run = find_run(services.layout, job_id)
    log = RunLog(run.log_file)
    if search is not None:
        if offset is not None or follow:
            raise InvalidInputError(
                "'search' is given with 'offset' or 'follow': request either the lines with a "
                "text, or a part of the log",
                param="search",
            )
        lines = await asyncio.to_thread(search_log, log, search, tail)
        return Response(lines, media_type="text/plain", headers=_UNBUFFERED)
    begin, end = await asyncio.to_thread(find_log_range, log, tail, offset)
    headers = {**_UNBUFFERED, "x-log-offset": str(begin)}
    if follow:
        text = follow_log(run, begin, services.max_stream_age_s)
        return StreamingResponse(text, media_type="text/plain", headers=headers)
    return ClosingResponse(log.read(begin, end), media_type="text/plain", headers=headers)


async def _stream_events(run: RunFolder, last_event_id: str | None, max_age_s: float) -> Response:
    is_over = await asyncio.to_thread(has_ended, run)
    offset = await asyncio.to_thread(find_offset, run, last_event_id)
    if is_over and offset == len(await asyncio.to_thread(run.events.read)):
        return Response(status_code=204)  # a browser does not reconnect after it
    events = follow_events(run, offset, max_age_s)
    return StreamingResponse(events, media_type="text/event-stream", headers=_UNBUFFERED)
