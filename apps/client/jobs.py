"""Requests for fine-tuning jobs."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

from apps.client.connection import ApiConnection, ApiRequest, join_path
from apps.client.errors import UnexpectedResponseError
from apps.client.resources import (
    Defaults,
    Estimate,
    Job,
    JobListPage,
    read_resource,
    read_resources,
)

JOBS_PATH = "/v1/fine_tuning/jobs"
_MAX_PAGE_ENTRIES = 1000


class MixedFile(TypedDict):
    """One of several training files."""

    file: str
    weight: float


class JobChanges(TypedDict, total=False):
    """What a copy of a job may change; None is as if the field were absent."""

    suffix: str | None
    training: Mapping[str, object]


class JobExtension(TypedDict, total=False):
    """How long the training of an extended job is in all; None is as if the field were absent."""

    epochs: int | None
    max_steps: int | None
    suffix: str | None


class JobRequest(TypedDict):
    """A new job; the settings in `training` replace the defaults. None: the field is absent."""

    model: str
    training_file: str
    training: Mapping[str, object]
    training_files: NotRequired[Sequence[MixedFile] | None]
    validation_file: NotRequired[str | None]
    suffix: NotRequired[str | None]
    priority: NotRequired[int]


class JobsClient:
    """Creates, shows and controls jobs."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def get_defaults(self, model: str, task: str | None = None) -> Defaults:
        """Return the default settings of a job for a model and a task, or its most likely task."""
        query = {"model": model} | ({"task": task} if task else {})
        request = ApiRequest("GET", "/v1/fine_tuning/defaults", query=query)
        return read_resource(Defaults, await self._connection.read_object(request))

    async def create(self, job: JobRequest) -> Job:
        """Create a job."""
        return await self._post(JOBS_PATH, job)

    async def estimate(self, job: JobRequest) -> Estimate:
        """Validate a job and estimate what it will take; raises as `create`, and creates none."""
        content = {name: value for name, value in job.items() if value is not None}
        request = ApiRequest("POST", f"{JOBS_PATH}/estimate", json=content)
        return read_resource(Estimate, await self._connection.read_object(request))

    async def clone(self, job_id: str, changes: JobChanges) -> Job:
        """Create a copy of a job, with some changes."""
        return await self._post(join_path(JOBS_PATH, job_id, "clone"), changes)

    async def extend(self, job_id: str, extension: JobExtension) -> Job:
        """Create a job that continues the training of one that has succeeded."""
        return await self._post(join_path(JOBS_PATH, job_id, "extend"), extension)

    async def list_newest(self, limit: int = 50) -> list[Job]:
        """List the newest jobs, newest first."""
        query = {"limit": str(min(limit, _MAX_PAGE_ENTRIES))}
        return read_resources(Job, await self._connection.read_entries(JOBS_PATH, query, limit))

    async def list_page(
        self, limit: int, *, after: str = "", status: str = "", search: str = ""
    ) -> JobListPage:
        """List one page of jobs, newest first: those after a job, of a status, with a text."""
        chosen = {"after": after, "status": status, "search": search}
        query = {"limit": str(limit)} | {name: value for name, value in chosen.items() if value}
        page = await self._connection.read_object(ApiRequest("GET", JOBS_PATH, query=query))
        entries = page.get("data")
        if not isinstance(entries, list):
            raise UnexpectedResponseError("the body has no list 'data'")
        return JobListPage(read_resources(Job, entries), bool(page.get("has_more")))

    async def get(self, job_id: str) -> Job:
        """Return one job."""
        request = ApiRequest("GET", join_path(JOBS_PATH, job_id))
        return read_resource(Job, await self._connection.read_object(request))

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job; return once it has stopped."""
        return await self._change(job_id, "cancel")

    async def pause(self, job_id: str) -> Job:
        """Pause a job: after its current step it saves a checkpoint and frees its resources."""
        return await self._change(job_id, "pause")

    async def resume(self, job_id: str) -> Job:
        """Resume a paused, failed or cancelled job."""
        return await self._change(job_id, "resume")

    async def delete(self, job_id: str) -> Mapping[str, object]:
        """Delete a job that has ended, with its checkpoints; return the response."""
        request = ApiRequest("DELETE", join_path(JOBS_PATH, job_id))
        return await self._connection.read_object(request)

    async def _post(self, path: str, body: JobRequest | JobChanges | JobExtension) -> Job:
        content = {name: value for name, value in body.items() if value is not None}
        request = ApiRequest("POST", path, json=content)
        return read_resource(Job, await self._connection.read_object(request))

    async def _change(self, job_id: str, action: Literal["cancel", "pause", "resume"]) -> Job:
        path = join_path(JOBS_PATH, job_id, action)
        request = ApiRequest("POST", path, kind="change")
        return read_resource(Job, await self._connection.read_object(request))
