"""A thin client of Tuneserve's HTTP API."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from apps.access.roles import Permission
from apps.client.resources import Defaults, Event, File, Job, Metrics, Model, Piece, Preview
from apps.sse import DataReader
from apps.ui.protection.access import Verdict

TIMEOUT_S = 30.0
CHANGE_TIMEOUT_S = 60.0
CHAT_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 5.0

Item = TypeVar("Item", bound=BaseModel)
Message = dict[str, str]


class ApiError(Exception):
    """The API refused a request or did not respond; the message is shown on the page."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.code = message, status, code


class ApiClient:
    """All API calls of the page; each raises only `ApiError`.

    `find_key` returns the key of the visitor for whom a call is made.
    """

    def __init__(
        self,
        api_url: str,
        find_key: Callable[[], str | None] = lambda: None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._api_url = api_url.rstrip("/")
        self._find_key = find_key
        self._http = httpx.AsyncClient(
            base_url=self._api_url,
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            transport=transport,
            trust_env=False,  # the API is our own, reached without a proxy
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def check_key(self, key: str | None) -> Verdict:
        """Ask the API for its verdict on a key."""
        # Sent every few seconds at most: the connection is not kept alive.
        headers = {"connection": "close"}
        request = self._http.build_request("GET", "/v1/access", headers=headers)
        try:
            answer = (await self._send(request, key=key)).json()
        except ApiError as exc:
            is_wrong = exc.status == 429 and exc.code == "invalid_api_key"
            is_refused = exc.status == 401 or is_wrong
            return Verdict.REFUSED if is_refused else Verdict.UNKNOWN
        return Verdict.NOT_NEEDED if answer.get("key") is None else Verdict.VALID

    async def may_write_files(self, key: str | None) -> bool:
        """Ask whether a key may upload files; return False also if the request fails."""
        request = self._http.build_request("GET", "/v1/access")
        try:
            answer = (await self._send(request, key=key)).json()
        except ApiError:
            return False
        return Permission.WRITE_FILES.value in answer["permissions"]

    async def list_models(self) -> list[Model]:
        """List all models, newest first."""
        return _read_list(Model, await self._get("/v1/models"))

    async def list_files(self) -> list[File]:
        """List all files of rows, newest first."""
        return _read_list(File, await self._get("/v1/files"))

    async def upload_file(self, name: str, content: BinaryIO) -> File:
        """Upload a file of rows under a name."""
        request = self._http.build_request(
            "POST",
            "/v1/files",
            data={"purpose": "fine-tune"},
            files={"file": (name, content)},
        )
        return _read(File, await self._send(request))

    async def preview_file(
        self,
        file_id: str,
        model: str,
        num_rows: int = 3,
        training: Mapping[str, Any] | None = None,
    ) -> Preview:
        """Return the first rows of a file as a model's tokens, with the settings in `training`."""
        query = {"model": model, "rows": str(num_rows)}
        if training:
            query["training"] = json.dumps(dict(training))
        return _read(Preview, await self._get(f"/v1/files/{_quote_id(file_id)}/preview", query))

    async def get_defaults(self, model: str) -> Defaults:
        """Return the default settings of a job for a model."""
        return _read(Defaults, await self._get("/v1/fine_tuning/defaults", {"model": model}))

    async def create_job(
        self,
        model: str,
        training_file: str,
        suffix: str | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> Job:
        """Create a job; the settings in `training` replace the defaults."""
        body = {"model": model, "training_file": training_file, "training": dict(training or {})}
        if suffix:
            body["suffix"] = suffix
        request = self._http.build_request("POST", "/v1/fine_tuning/jobs", json=body)
        return _read(Job, await self._send(request))

    async def list_jobs(self, limit: int = 50) -> list[Job]:
        """List the newest jobs, newest first."""
        return _read_list(Job, await self._get("/v1/fine_tuning/jobs", {"limit": str(limit)}))

    async def get_job(self, job_id: str) -> Job:
        """Return one job."""
        return _read(Job, await self._get(_write_job_path(job_id)))

    async def cancel_job(self, job_id: str) -> Job:
        """Cancel a job; return once it has stopped."""
        return await self._change_job(job_id, "cancel")

    async def pause_job(self, job_id: str) -> Job:
        """Pause a job: after its current step it saves a checkpoint and frees its resources."""
        return await self._change_job(job_id, "pause")

    async def resume_job(self, job_id: str) -> Job:
        """Resume a paused, failed or cancelled job."""
        return await self._change_job(job_id, "resume")

    async def _change_job(self, job_id: str, action: str) -> Job:
        request = self._http.build_request(
            "POST", f"{_write_job_path(job_id)}/{action}", timeout=CHANGE_TIMEOUT_S
        )
        return _read(Job, await self._send(request))

    async def list_events(
        self, job_id: str, limit: int = 100, newer_than: str | None = None
    ) -> list[Event]:
        """List the newest events of a job, newest first, or only those after `newer_than`."""
        query = {"limit": str(limit)} | ({"newer_than": newer_than} if newer_than else {})
        return _read_list(Event, await self._get(f"{_write_job_path(job_id)}/events", query))

    async def list_metrics(self, job_id: str, max_points: int) -> list[Metrics]:
        """List the metrics of at most `max_points` evenly spaced steps, oldest first."""
        query = {"after_step": "0", "max_points": str(max_points)}
        return _read_list(Metrics, await self._get(f"{_write_job_path(job_id)}/metrics", query))

    async def read_log(self, job_id: str, max_bytes: int) -> str:
        """Return the last `max_bytes` bytes of a job's log."""
        path = f"{_write_job_path(job_id)}/logs"
        return (await self._get(path, {"tail": str(max_bytes)})).text

    async def stream_chat(
        self, model: str, messages: Sequence[Message], temperature: float | None, max_tokens: int
    ) -> AsyncGenerator[Piece, None]:
        """Stream the answer to a chat; closing the stream early stops the generation."""
        body: dict[str, Any] = {
            "model": model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if temperature is not None:
            body["temperature"] = temperature
        request = self._http.build_request(
            "POST", "/v1/chat/completions", json=body, timeout=CHAT_TIMEOUT_S
        )
        response = await self._send(request, stream=True)
        try:
            reader = DataReader()
            async for received in response.aiter_bytes():
                for data in reader.feed(received):
                    if data != "[DONE]":
                        yield _read_piece(data, response.headers.get("x-model-id"))
        except httpx.HTTPError as exc:
            raise ApiError("The connection broke off in the middle of the answer.") from exc
        finally:
            await response.aclose()

    async def _get(self, path: str, query: Mapping[str, str] | None = None) -> httpx.Response:
        return await self._send(self._http.build_request("GET", path, params=query))

    async def _send(
        self, request: httpx.Request, *, stream: bool = False, key: str | None = None
    ) -> httpx.Response:
        """Send a request with `key`, or else with the visitor's key."""
        if (key := key or self._find_key()) is not None:
            request.headers["authorization"] = f"Bearer {key}"
        try:
            response = await self._http.send(request, stream=stream)
            if response.is_error:
                await response.aread()
        except httpx.TimeoutException as exc:
            raise ApiError("The API took too long to answer; please try again.") from exc
        except httpx.HTTPError as exc:
            raise ApiError(
                f"The API at {self._api_url} does not answer; it may still be starting."
            ) from exc
        if response.is_error:
            raise _describe_error(response)
        return response


def _write_job_path(job_id: str) -> str:
    return f"/v1/fine_tuning/jobs/{_quote_id(job_id)}"


def _quote_id(name: str) -> str:
    """Quote an id as one path segment, so that it cannot address another route."""
    if name in (".", ".."):
        raise ApiError(f"{name!r} is not an id.", 404)
    return quote(name, safe="")


def _describe_error(response: httpx.Response) -> ApiError:
    """Return an error with the message of the body, or else with the status."""
    status = response.status_code
    code = None
    try:
        error = response.json()["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"The API answered with status {status}."
    if message.partition(" ")[0].isalpha():  # else it starts with a name, as of a setting or file
        message = message[:1].upper() + message[1:]
    if status in (429, 503):
        message = f"{message.rstrip('.')}. Please try again in a moment."
    return ApiError(message, status, code)


def _read(kind: type[Item], response: httpx.Response) -> Item:
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as exc:
        raise ApiError("The API answered with something that this page does not know.") from exc


def _read_list(kind: type[Item], response: httpx.Response) -> list[Item]:
    try:
        return [kind.model_validate(item) for item in response.json()["data"]]
    except (ValueError, KeyError, TypeError) as exc:  # a ValidationError is a ValueError
        raise ApiError("The API answered with something that this page does not know.") from exc


def _read_piece(data: str, model_id: str | None) -> Piece:
    try:
        chunk = json.loads(data)
    except ValueError as exc:
        raise ApiError("The API sent a part of the answer that is not JSON.") from exc
    if "error" in chunk:
        raise ApiError(str(chunk["error"].get("message", "The answer broke off.")))
    choices = chunk.get("choices") or [{}]
    usage = chunk.get("usage") or {}
    return Piece(
        text=(choices[0].get("delta") or {}).get("content") or "",
        model=model_id or chunk.get("model"),
        num_tokens=usage.get("completion_tokens"),
        finish_reason=choices[0].get("finish_reason"),
    )
