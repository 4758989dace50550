"""HTTP requests to the API: the address, the key, time limits, and the translation of errors."""

import asyncio
import json
import os
import socket
import ssl
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import httpx

from apps.client.errors import (
    ApiTimeoutError,
    ApiUnavailableError,
    ApiUnreachableError,
    ConnectionLostError,
    InvalidIdError,
    InvalidUrlError,
    RequestRefusedError,
    UnexpectedResponseError,
    read_error_body,
    read_error_param,
)

CONNECT_TIMEOUT_S = 5.0
PATIENCE_S = 60.0
"""How long to wait for an API that restarts."""
RETRY_INTERVAL_S = 0.3
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

Result = TypeVar("Result")


class ClientTimeouts(NamedTuple):
    """Seconds without any progress after which a request fails, by its kind; None: no limit."""

    request_s: float | None = 30.0
    change_s: float | None = 60.0
    """Requests that return once a job has stopped or started."""
    generation_s: float | None = 120.0
    transfer_s: float | None = 30.0
    """Uploads, downloads, and requests that read all files of a model."""


DEFAULT_TIMEOUTS = ClientTimeouts()


class Upload(NamedTuple):
    """A file in a form."""

    name: str
    content: BinaryIO


@dataclass(frozen=True)
class ApiRequest:
    """A request; the body is `json`, `form` with `upload` or `images`, or `content`."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    query: Mapping[str, str] | None = None
    json: Mapping[str, object] | None = None
    form: Mapping[str, str] | None = None
    upload: Upload | None = None
    images: Sequence[Upload] = ()
    content: AsyncIterable[bytes] | None = None
    headers: Mapping[str, str] | None = None
    key: str | None = None
    """The key to use in place of the client's."""
    kind: Literal["request", "change", "generation", "transfer", "follow"] = "request"


class ApiConnection:
    """Connections to the API at a URL; every method raises only `ApiClientError`s.

    `find_key` returns the key for the current call. A proxy that the environment names is used only
    with `uses_proxies`, and never for this machine, so that no proxy gets the key.
    """

    def __init__(
        self,
        url: str,
        find_key: Callable[[], str | None],
        *,
        timeouts: ClientTimeouts,
        uses_proxies: bool,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._find_key = find_key
        self._timeouts = timeouts
        with _translate_errors(self.url):
            base_url = httpx.URL(self.url)
            self._http = httpx.AsyncClient(
                base_url=base_url,
                transport=transport,
                trust_env=uses_proxies and base_url.host not in _LOOPBACK,
            )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, request: ApiRequest) -> httpx.Response:
        """Send a request, and return the whole response; raises if it is refused."""
        with _translate_errors(self.url):
            response = await self._http.send(self._build(request))
        _check(response)
        return response

    async def read_object(self, request: ApiRequest) -> Mapping[str, object]:
        """Send a request, and return the JSON object of its response."""
        body = _parse_json((await self.send(request)).content)
        if not isinstance(body, Mapping):
            raise UnexpectedResponseError(f"the body is {str(body)[:100]!r}, expected an object")
        return body

    async def read_entries(
        self, path: str, query: Mapping[str, str] | None = None, limit: int | None = None
    ) -> list[object]:
        """Fetch the pages of a list until its end, or until there are `limit` entries."""
        entries: list[object] = []
        after: dict[str, str] = {}
        while True:
            request = ApiRequest("GET", path, query={**(query or {}), **after})
            page = await self.read_object(request)
            found = page.get("data")
            if not isinstance(found, list):
                raise UnexpectedResponseError("the body has no list 'data'")
            entries += found
            if not found or not page.get("has_more"):
                return entries[:limit]
            if limit is not None and len(entries) >= limit:
                return entries[:limit]
            last = found[-1]
            if not isinstance(last, Mapping) or "id" not in last:
                raise UnexpectedResponseError("the last entry of a page has no id")
            after = {"after": str(last["id"])}

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncGenerator[httpx.Response, None]:
        """Send a request, and stream the response; raises `ConnectionLostError` once it has begun.

        A response that refuses the request is read at once, and raises as `send` does.
        """
        with _translate_errors(self.url):
            response = await self._http.send(self._build(request), stream=True)
        try:
            if not response.is_success:
                with _translate_errors(self.url):
                    await response.aread()
                _check(response)
            with _translate_errors(self.url, has_begun=True):
                yield response
        finally:
            await response.aclose()

    async def wait_until_available(self) -> None:
        """Wait until the API is healthy: at least `RETRY_INTERVAL_S`, at most `PATIENCE_S`."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            await asyncio.sleep(RETRY_INTERVAL_S)
            with suppress(ApiUnavailableError, RequestRefusedError):
                await self.send(ApiRequest("GET", "/healthz"))
                return

    async def retry_when_available(self, send: Callable[[], Awaitable[Result]]) -> Result:
        """Send a request; if the API is temporarily unavailable, wait for it, then send it again.

        `send` is called once more at most.
        """
        try:
            return await send()
        except ApiUnavailableError:
            pass
        except RequestRefusedError as exc:
            if exc.status != httpx.codes.SERVICE_UNAVAILABLE:
                raise
        await self.wait_until_available()
        return await send()

    def _build(self, request: ApiRequest) -> httpx.Request:
        timeouts = {**self._timeouts._asdict(), "follow_s": None}
        built = self._http.build_request(
            request.method,
            request.path,
            params=request.query,
            json=request.json,
            data=request.form,
            files=_list_files(request) or None,
            content=request.content,
            headers=request.headers,
            timeout=httpx.Timeout(timeouts[f"{request.kind}_s"], connect=CONNECT_TIMEOUT_S),
        )
        if key := request.key or self._find_key():
            built.headers["authorization"] = f"Bearer {key}"
        return built


def _list_files(request: ApiRequest) -> list[tuple[str, Upload]]:
    """Return the files of a form with the names of their fields."""
    images = [("images", image) for image in request.images]
    return [("file", request.upload), *images] if request.upload else images


def join_path(collection: str, identifier: str, *parts: str) -> str:
    """Return the path of an item; its id is quoted, so that it cannot address another route."""
    if not identifier.strip("."):
        raise InvalidIdError(identifier)
    return "/".join((collection, quote(identifier, safe=""), *parts))


@contextmanager
def _translate_errors(url: str, *, has_begun: bool = False) -> Iterator[None]:
    """Translate the exceptions of httpx; the only place that does."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as exc:
        raise InvalidUrlError(url, str(exc)) from exc
    except httpx.HTTPError as exc:
        if has_begun:
            raise ConnectionLostError(url, _find_reason(exc)) from exc
        if isinstance(exc, httpx.TimeoutException):
            raise ApiTimeoutError(url, _find_reason(exc)) from exc
        raise ApiUnreachableError(url, _find_reason(exc)) from exc


def _find_reason(exc: BaseException) -> str:
    """Return the message of the first cause, which httpx and anyio replace by general ones."""
    reason, cause = str(exc), exc
    while (next_cause := cause.__cause__ or cause.__context__) is not None:
        cause = next_cause
        while isinstance(cause, BaseExceptionGroup):  # one per address of the host
            cause = cause.exceptions[-1]
        if isinstance(cause, OSError) and str(cause):
            reason = _describe_system_error(cause)
    return reason or type(exc).__name__


def _describe_system_error(exc: OSError) -> str:
    is_own_text = isinstance(exc, (socket.gaierror, ssl.SSLError)) or not exc.errno
    return str(exc) if is_own_text else f"[Errno {exc.errno}] {os.strerror(exc.errno or 0)}"


def _check(response: httpx.Response) -> None:
    """Raise `RequestRefusedError` unless a response, which has been read, is a success."""
    if response.is_success:
        return
    try:
        body = response.json()
    except ValueError:
        body = None
    message, code = read_error_body(body)
    param = read_error_param(body)
    raise RequestRefusedError(response.status_code, response.reason_phrase, message, code, param)


def _parse_json(content: bytes) -> object:
    try:
        parsed: object = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise UnexpectedResponseError(f"the body is not JSON: {exc}") from exc
    return parsed
