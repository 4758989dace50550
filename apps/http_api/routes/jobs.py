"""`/v1/fine_tuning/jobs`: create, show and control jobs, in OpenAI's format."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Query, Request

from apps.access.roles import Permission, requires
from apps.fine_tuning.extension.extension_request import ExtensionRequest, parse_extension
from apps.fine_tuning.index.run_index import UnreadableRun, describe_fault
from apps.fine_tuning.index.run_lookup import expect_run, find_run
from apps.fine_tuning.job_requests import FineTuneRequest, merge_changes, parse_fine_tune
from apps.fine_tuning.job_responses import (
    UNREADABLE_STATUS,
    JobObject,
    describe_job,
    describe_unreadable_job,
)
from apps.http_api.json_body import JsonBody, OptionalJsonBody
from apps.http_api.pagination import After, Limit, cut_page, describe_page
from apps.http_api.routes import ServicesOf, describe_body
from storage.durable import DamagedFileError
from storage.layout import read_creation_time
from storage.versioned_json import NewerFormatError
from training.run.folder import RunFolder
from training.run.run_record import RunRecord, RunStatus

router = APIRouter(prefix="/v1/fine_tuning")

_METADATA = {
    "name": "metadata",
    "in": "query",
    "required": False,
    "style": "deepObject",
    "description": "Only jobs with all of these pairs, as in `metadata[team]=ovens`.",
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}
MAX_SEARCH_CHARACTERS = 200
JobStatus = Literal[RunStatus, "unreadable"]
logger = logging.getLogger(__name__)


class JobSelection(NamedTuple):
    """Which jobs are listed: those with all pairs of metadata, the status and the text."""

    metadata: Mapping[str, str]
    status: JobStatus | None
    search: str
    """Empty, or a text in the form of `str.casefold`."""

    def includes(self, record: RunRecord) -> bool:
        """Return whether a job is listed."""
        if self.status is not None and record.status != self.status:
            return False
        if not self.metadata.items() <= (record.request.get("metadata") or {}).items():
            return False
        asked = (record.request.get(name) for name in ("suffix", "model"))
        texts = (record.id, record.model_id, record.training_filename, *asked)
        return any(self.search in str(text or "").casefold() for text in texts)

    def includes_unreadable(self) -> bool:
        """Return whether jobs are listed of which only the id is known."""
        is_status_right = self.status in (None, UNREADABLE_STATUS)
        return is_status_right and not self.metadata and not self.search


@router.get("/defaults")
@requires(Permission.READ_JOBS)
async def get_defaults(
    services: ServicesOf,
    model: str = "latest",
    task: Annotated[
        str | None, Query(description="What is learned; default: the task that suits the model.")
    ] = None,
) -> Mapping[str, object]:
    """Show the default settings of a job for a model, and the tasks that the model can learn."""
    return await services.fine_tuning.get_defaults(model, task)


@router.post("/jobs", openapi_extra=describe_body(FineTuneRequest))
@requires(Permission.WRITE_JOBS)
async def create_job(services: ServicesOf, body: JsonBody) -> Mapping[str, object]:
    """Validate a job and queue it."""
    await body.check(parse_fine_tune)
    return await services.fine_tuning.create(body.value)


@router.post("/jobs/estimate", openapi_extra=describe_body(FineTuneRequest))
@requires(Permission.READ_FILES)
async def estimate_job(services: ServicesOf, body: JsonBody) -> Mapping[str, object]:
    """Validate a job and estimate its steps, tokens, time, memory and disk; nothing is created."""
    await body.check(parse_fine_tune)
    return await services.fine_tuning.estimate(body.value)


@router.get("/jobs", openapi_extra={"parameters": [_METADATA]})
@requires(Permission.READ_JOBS)
async def list_jobs(
    services: ServicesOf,
    request: Request,
    limit: Limit = 20,
    after: After = None,
    status: Annotated[JobStatus | None, Query(description="Only jobs with this status.")] = None,
    search: Annotated[
        str,
        Query(
            max_length=MAX_SEARCH_CHARACTERS,
            description="Only jobs with this text, in any case, in their id, suffix, model, new "
            "model or the name of their file.",
        ),
    ] = "",
) -> Mapping[str, object]:
    """List jobs, newest first; `metadata[KEY]=VALUE` selects those that have this pair."""
    selection = JobSelection(_read_metadata(request), status, search.casefold())
    return await asyncio.to_thread(_list_jobs, services, selection, limit, after)


def _list_jobs(
    services: ServicesOf, selection: JobSelection, limit: int, after: str | None
) -> Mapping[str, object]:
    found = services.runs.scan()
    listed: list[tuple[int, str, RunFolder | UnreadableRun]] = [
        (record.created_at, record.id, run)
        for run, record in found.runs
        if selection.includes(record)
    ]
    if selection.includes_unreadable():
        for unreadable in found.unreadable:
            run_id = unreadable.run.path.name
            listed.append((read_creation_time(run_id) or 0, run_id, unreadable))
        listed.sort(key=itemgetter(0, 1), reverse=True)
    page, has_more = cut_page(listed, itemgetter(1), limit, after, descending=True)
    shown = []
    for _, run_id, entry in page:
        if isinstance(entry, UnreadableRun):
            shown.append(describe_unreadable_job(entry))
            continue
        try:
            shown.append(describe_job(entry))
        except FileNotFoundError:  # deleted just now
            continue
        except (DamagedFileError, OSError) as exc:
            logger.exception("job %s cannot be shown", run_id)
            unreadable = UnreadableRun(entry, describe_fault(exc))
            shown.append(describe_unreadable_job(unreadable))
    return describe_page(shown, has_more=has_more)


@router.get("/jobs/{job_id}")
@requires(Permission.READ_JOBS)
async def get_job(services: ServicesOf, job_id: str) -> Mapping[str, object]:
    """Show one job."""
    with expect_run(job_id):
        return dict(await asyncio.to_thread(_get_job, find_run(services.layout, job_id)))


def _get_job(run: RunFolder) -> JobObject:
    try:
        return describe_job(run)
    except NewerFormatError as exc:
        return describe_unreadable_job(UnreadableRun(run, exc.reason))


@router.post("/jobs/{job_id}/cancel")
@requires(Permission.WRITE_JOBS)
async def cancel_job(services: ServicesOf, job_id: str) -> Mapping[str, object]:
    """Cancel a job immediately."""
    return await services.fine_tuning.cancel(job_id)


@router.post("/jobs/{job_id}/pause")
@requires(Permission.WRITE_JOBS)
async def pause_job(services: ServicesOf, job_id: str) -> Mapping[str, object]:
    """Pause a job: it finishes its step, saves a checkpoint and frees its resources."""
    return await services.fine_tuning.pause(job_id)


@router.post("/jobs/{job_id}/resume")
@requires(Permission.WRITE_JOBS)
async def resume_job(services: ServicesOf, job_id: str) -> Mapping[str, object]:
    """Queue a paused, failed or cancelled job to resume."""
    return await services.fine_tuning.resume(job_id)


@router.post(
    "/jobs/{job_id}/clone", openapi_extra=describe_body("FineTuneChanges", is_required=False)
)
@requires(Permission.WRITE_JOBS)
async def clone_job(
    services: ServicesOf, job_id: str, body: OptionalJsonBody
) -> Mapping[str, object]:
    """Create a copy of a job, with the changes in the body."""
    asked = await asyncio.to_thread(_read_request, services, job_id)
    return await services.fine_tuning.create(await body.check(partial(merge_changes, asked)))


@router.post("/jobs/{job_id}/extend", openapi_extra=describe_body(ExtensionRequest))
@requires(Permission.WRITE_JOBS)
async def extend_job(services: ServicesOf, job_id: str, body: JsonBody) -> Mapping[str, object]:
    """Create a job that continues the training of one that has succeeded, which stays as it is."""
    await body.check(parse_extension)
    return await services.fine_tuning.extend(job_id, body.value)


@router.delete("/jobs/{job_id}")
@requires(Permission.WRITE_JOBS)
async def delete_job(services: ServicesOf, job_id: str) -> Mapping[str, object]:
    """Delete a job that has ended, with its checkpoints; its models are kept."""
    await services.fine_tuning.delete(job_id)
    return {"id": job_id, "object": "fine_tuning.job", "deleted": True}


def _read_request(services: ServicesOf, job_id: str) -> dict[str, Any]:
    """Read the request that created a job."""
    with expect_run(job_id):
        return find_run(services.layout, job_id).read_record().request


def _read_metadata(request: Request) -> dict[str, str]:
    """Read the pairs that a client sends as `metadata[KEY]=VALUE`."""
    return {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in request.query_params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
