"""A server of OpenAI's API that answers in place of generators: what it lists, and asking it."""

import asyncio
import ipaddress
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from apps.access import read_api_key
from apps.errors import ApiError

logger = logging.getLogger(__name__)

UPSTREAM_KEY_VARIABLE = "TUNESERVE_UPSTREAM_KEY"
LISTING_AGE_S = 2.0  # so old a listing may be
LISTING_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
_KEEP_ALIVE_S = 2.0  # servers close idle connections after 5 s, some of them in our face


class Upstream:
    """One server, at a URL without '/v1'; no proxy of the environment stands between."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        key = find_upstream_key(self.url)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),  # the relay has a deadline
            limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S),
            trust_env=False,
        )
        self._listed: frozenset[str] | None = None
        self._fault: str | None = None
        self._asked_at: float | None = None  # by the event loop's clock
        self._asking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def list_models(self) -> frozenset[str] | None:
        """Return the ids of its models, at most some seconds old; None if it has told none yet.

        Whoever asks meanwhile waits for the same answer. Of a server that does not answer, the last
        listing holds.
        """
        loop = asyncio.get_running_loop()
        if self._asking is None or self._asking.done():
            if self._asked_at is not None and loop.time() < self._asked_at + LISTING_AGE_S:
                return self._listed
            self._asking = loop.create_task(self._ask())
        await asyncio.shield(self._asking)
        return self._listed

    def doubt(self) -> None:
        """Have the next request ask for the models again."""
        self._asked_at = None

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Send a request; the answer's status and headers are there, its body is still to come.

        It must be closed. Raises `ApiError` if there is no answer.
        """
        with self.translate_faults():
            request = self._http.build_request("POST", path, json=body)
            return await self._http.send(request, stream=True)

    @contextmanager
    def translate_faults(self) -> Iterator[None]:
        """Tell a connection that fails or breaks as `ApiError`."""
        try:
            yield
        except httpx.HTTPError as exc:
            logger.warning("the server at %s: %s", self.url, _describe(exc))
            if isinstance(exc, (httpx.ConnectError, httpx.ConnectTimeout)):
                raise ApiError(
                    503,
                    "the server that has the model does not answer; try again in a moment",
                    code="upstream_unavailable",
                ) from exc
            raise ApiError(
                502, "the server that has the model broke the connection", code="upstream_failed"
            ) from exc

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(LISTING_TIMEOUT_S):
                response = await self._http.get("/v1/models")
            if response.status_code == 404:  # nothing is deployed there
                listed: frozenset[str] = frozenset()
            else:
                response.raise_for_status()
                listed = frozenset(str(entry["id"]) for entry in response.json()["data"])
        except (httpx.HTTPError, TimeoutError, TypeError, KeyError, ValueError) as exc:
            fault = _describe(exc)
            if fault != self._fault:
                logger.warning("the server at %s does not list its models: %s", self.url, fault)
            self._fault = fault
        else:
            self._listed, self._fault = listed, None
        self._asked_at = asyncio.get_running_loop().time()


def find_upstream_key(url: str) -> str | None:
    """Return the key for a server; our own goes to no other machine."""
    own = os.environ.get(UPSTREAM_KEY_VARIABLE, "").strip()
    return own or (read_api_key() if _is_loopback(urlsplit(url).hostname or "") else None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _describe(exc: Exception) -> str:
    return str(exc) or type(exc).__name__
