"""Client of an upstream, an OpenAI-compatible server that is used instead of generators."""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import anyio
import httpx

from apps.access.gate import read_api_key
from apps.access.keyless import is_loopback
from apps.errors import ApiError
from apps.settings import UpstreamSettings

logger = logging.getLogger(__name__)

LISTING_TIMEOUT_S = 3.0
LISTING_AGE_S = 30.0  # age up to which a listing is valid if no newer one is received
CONNECT_TIMEOUT_S = 5.0
_KEEP_ALIVE_S = 2.0  # servers close idle connections after 5 s, some as a request arrives


class UnreachableError(ApiError):
    """A server that a request cannot have reached, so that it may be sent to another one."""

    def __init__(self) -> None:
        message = "the server that has the model does not answer; try again in a moment"
        super().__init__(503, message, code="upstream_unavailable")


class Upstream:
    """One server, at a URL without '/v1'; proxies that the environment names are not used."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.url = settings.url.rstrip("/")
        key = find_upstream_key(settings)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),  # the proxy has a deadline
            limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S),
            trust_env=False,
        )
        self._listed: frozenset[str] | None = None
        self._listed_at = 0.0  # by the event loop's clock
        self._fault: str | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @property
    def listed(self) -> frozenset[str] | None:
        """The ids of the models in its last valid listing; None if there is none."""
        if asyncio.get_running_loop().time() > self._listed_at + LISTING_AGE_S:
            return None
        return self._listed

    async def update_models(self) -> None:
        """Update `listed`; a refused connection clears it, other faults leave it unchanged."""
        try:
            with anyio.fail_after(LISTING_TIMEOUT_S):
                response = await self._http.get("/v1/models")
            if response.status_code == 404:  # nothing is deployed there
                listed: frozenset[str] = frozenset()
            else:
                response.raise_for_status()
                listed = frozenset(str(entry["id"]) for entry in response.json()["data"])
        except (httpx.HTTPError, TimeoutError, TypeError, KeyError, ValueError) as exc:
            if isinstance(exc, (httpx.ConnectError, httpx.ConnectTimeout)):
                self._listed = None
            fault = _describe(exc)
            if fault != self._fault:
                logger.warning("the server at %s does not list its models: %s", self.url, fault)
            self._fault = fault
        else:
            self._listed, self._fault = listed, None
            self._listed_at = asyncio.get_running_loop().time()

    async def post(self, path: str, body: Mapping[str, object]) -> httpx.Response:
        """Send a request; return the response, of which only status and headers are read.

        The caller must close it. Raises `UnreachableError`, and `ApiError` if no response begins.
        """
        with self.translate_faults():
            request = self._http.build_request("POST", path, json=body)
            return await self._http.send(request, stream=True)

    @contextmanager
    def translate_faults(self) -> Iterator[None]:
        """Translate failed and broken connections to `ApiError`."""
        try:
            yield
        except httpx.HTTPError as exc:
            logger.warning("the server at %s: %s", self.url, _describe(exc))
            if isinstance(exc, (httpx.ConnectError, httpx.ConnectTimeout)):
                self._listed = None
                raise UnreachableError from exc
            raise ApiError(
                502, "the server that has the model broke the connection", code="upstream_failed"
            ) from exc


def find_upstream_key(settings: UpstreamSettings) -> str | None:
    """Return the key for a server: that in its `key_variable`, or our own if it names none.

    Our own key is sent only to this machine. Raises `ValueError` if the environment lacks the named
    variable.
    """
    if settings.key_variable is None:
        host = urlsplit(settings.url).hostname or ""
        return read_api_key() if host == "localhost" or is_loopback(host) else None
    key = os.environ.get(settings.key_variable, "").strip()
    if not key:
        raise ValueError(
            f"the environment variable {settings.key_variable!r} is not set; the server at "
            f"{settings.url!r} needs the key in it"
        )
    return key


def _describe(exc: Exception) -> str:
    return str(exc) or type(exc).__name__
