"""Requests for what a job writes: events, metrics, log and checkpoints."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from urllib.parse import quote

from apps.client.connection import ApiConnection, ApiRequest, join_path
from apps.client.errors import ConnectionLostError, UnexpectedResponseError
from apps.client.jobs import JOBS_PATH
from apps.client.resources import (
    Event,
    Job,
    JobCheckpoint,
    LogEnd,
    Metrics,
    StepEvaluation,
    read_resource,
    read_resources,
)
from apps.sse import read_data

_NO_CONTENT = 204


class JobOutputsClient:
    """Lists and follows what a job writes.

    What follows a job resumes where a lost connection ended, so that nothing is missed or repeated.
    """

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def list_events(
        self, job_id: str, limit: int = 100, newer_than: str | None = None
    ) -> list[Event]:
        """List the newest events, newest first, or only those after `newer_than`."""
        query = {"limit": str(limit)} | ({"newer_than": newer_than} if newer_than else {})
        path = join_path(JOBS_PATH, job_id, "events")
        return read_resources(Event, await self._connection.read_entries(path, query, limit))

    async def follow_events(self, job_id: str) -> AsyncGenerator[Event, None]:
        """Yield all events, oldest first, and new ones until the job ends."""
        path, last = join_path(JOBS_PATH, job_id, "events"), None
        while True:
            headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
            request = ApiRequest("GET", path, headers=headers, kind="follow")
            with suppress(ConnectionLostError):
                async with self._connection.stream(request) as response:
                    if response.status_code == _NO_CONTENT:
                        return
                    async with aclosing(read_data(response.aiter_bytes())) as events:
                        async for data in events:
                            event = _parse_event(data)
                            last = event.id
                            yield event
            await self._connection.wait_until_available()

    async def list_metrics(
        self, job_id: str, *, after_step: int = 0, max_points: int | None = None
    ) -> list[Metrics]:
        """List the metrics of the steps after one, oldest first.

        With `max_points`, at most that many steps are returned, evenly spaced.
        """
        query = {"after_step": str(after_step)}
        if max_points is not None:
            query["max_points"] = str(max_points)
        path = join_path(JOBS_PATH, job_id, "metrics")
        return read_resources(Metrics, await self._connection.read_entries(path, query))

    async def list_evaluations(self, job_id: str, limit: int) -> list[StepEvaluation]:
        """List the newest evaluations, newest first."""
        path = join_path(JOBS_PATH, job_id, "evaluations")
        query = {"limit": str(limit)}
        return read_resources(StepEvaluation, await self._connection.read_entries(path, query))

    async def update_metrics(self, job_id: str, known: Sequence[Metrics]) -> list[Metrics]:
        """Return `known` with the metrics of new steps, without steps that a resume rolled back."""
        last_step = known[-1].step if known else 0
        new = await self.list_metrics(job_id, after_step=max(0, last_step - 1))
        if known and (not new or new[0] != known[-1]):
            return await self.list_metrics(job_id)
        return [*known, *new[1 if known else 0 :]]

    async def read_log_end(self, job_id: str, max_bytes: int) -> LogEnd:
        """Return the last `max_bytes` bytes of the log, and where they are in it."""
        path = join_path(JOBS_PATH, job_id, "logs")
        request = ApiRequest("GET", path, query={"tail": str(max_bytes)})
        response = await self._connection.send(request)
        return LogEnd(_read_offset(response.headers.get("x-log-offset", "")), response.content)

    async def search_log(self, job_id: str, text: str, max_bytes: int) -> str:
        """Return the last lines of the log with a text, at most `max_bytes` bytes."""
        path = join_path(JOBS_PATH, job_id, "logs")
        request = ApiRequest("GET", path, query={"search": text, "tail": str(max_bytes)})
        return (await self._connection.send(request)).text

    async def stream_log(
        self, job_id: str, max_bytes: int, *, follow: bool
    ) -> AsyncGenerator[bytes, None]:
        """Yield the last `max_bytes` bytes of the log and, with `follow`, what is added to it."""
        path = join_path(JOBS_PATH, job_id, "logs")
        query = {"tail": str(max_bytes), "follow": str(follow).lower()}
        has_ended = False
        while True:
            is_whole = False
            request = ApiRequest("GET", path, query=query, kind="follow")
            try:
                async with self._connection.stream(request) as response:
                    offset = _read_offset(response.headers.get("x-log-offset", ""))
                    async for piece in response.aiter_bytes():
                        offset += len(piece)
                        yield piece
                    is_whole = True
            except ConnectionLostError:
                if not follow:
                    raise
            if is_whole and (has_ended or not follow):
                return
            await self._connection.wait_until_available()
            has_ended = (await self._read_job(job_id)).is_final
            # If the job has ended, one more request fetches what was added.
            query = {"offset": str(offset), "follow": "true"}

    async def list_checkpoints(self, job_id: str) -> list[JobCheckpoint]:
        """List the checkpoints that the job still has, newest first."""
        path = join_path(JOBS_PATH, job_id, "checkpoints")
        return read_resources(JobCheckpoint, await self._connection.read_entries(path))

    async def publish_checkpoint(
        self, job_id: str, checkpoint_id: str, model_id: str | None = None
    ) -> Mapping[str, object]:
        """Start publishing a checkpoint as a model; an event reports when it is published."""
        path = join_path(JOBS_PATH, job_id, "checkpoints", quote(checkpoint_id, safe=""), "publish")
        body = {"model": model_id} if model_id else {}
        return await self._connection.read_object(ApiRequest("POST", path, json=body))

    async def _read_job(self, job_id: str) -> Job:
        request = ApiRequest("GET", join_path(JOBS_PATH, job_id))
        read = self._connection.read_object
        return read_resource(
            Job, await self._connection.retry_when_available(lambda: read(request))
        )


def _parse_event(data: bytes) -> Event:
    try:
        return read_resource(Event, json.loads(data.decode(errors="replace")))
    except ValueError as exc:
        raise UnexpectedResponseError(f"an event is not JSON: {exc}") from exc


def _read_offset(header: str) -> int:
    if not header.isdecimal():
        raise UnexpectedResponseError(f"the header x-log-offset is {header!r}, expected a number")
    return int(header)
