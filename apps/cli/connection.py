"""HTTP requests of the commands to an application."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from apps.cli.output import fail

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "TUNESERVE_API_KEY"
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_PATIENCE_S = 60.0  # how long to wait for an application that restarts
_RETRY_S = 0.3
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

Url = Annotated[
    str,
    typer.Option(envvar="TUNESERVE_URL", help=f"The application; its key is in {KEY_VARIABLE}."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print what the API answers.")]


def locate(collection: str, identifier: str, *parts: str) -> str:
    """Return the path of an item; its id is quoted, so that it cannot address another path."""
    if not identifier.strip("."):
        fail(f"{identifier!r} is no id")
    return "/".join((collection, quote(identifier, safe=""), *parts))


class Connection:
    """An application at a URL; a refused request ends the command with the error message."""

    def __init__(self, url: str) -> None:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not key.isascii():
            fail(f"{KEY_VARIABLE} has characters that no key has: expected ASCII")
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def ask(self, method: str, path: str, *, is_patient: bool = False, **options: Any) -> Any:
        """Send a request, and return the JSON of the response.

        With `is_patient`, wait for an application that is temporarily unavailable, then retry once.
        """
        with self._open() as http:
            try:
                answer = http.request(method, path, **options)
                is_away = answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
            except httpx.TransportError:
                if not is_patient:
                    raise
                is_away = True
            if is_away and is_patient:
                self.wait_until_back()
                answer = http.request(method, path, **options)
            try:
                return _check(answer).json()
            except ValueError:
                fail(f"what answers at {self.url} is no Tuneserve")

    def list_all(
        self, path: str, limit: int | None = None, params: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Fetch the pages of a list until its end, or until there are `limit` entries."""
        entries: list[dict[str, Any]] = []
        after: dict[str, Any] = {}
        while True:
            page = self.ask("GET", path, params={**(params or {}), **after})
            entries += page["data"]
            if not page.get("has_more") or (limit is not None and len(entries) >= limit):
                return entries[:limit]
            after = {"after": entries[-1]["id"]}

    @contextmanager
    def stream(
        self, method: str, path: str, *, may_be_cut: bool = False, **options: Any
    ) -> Iterator[httpx.Response]:
        """Send a request and stream the response, without a read timeout.

        With `may_be_cut`, a lost connection ends the response without an error; call
        `wait_until_back` before a retry.
        """
        timeout = httpx.Timeout(None, connect=5.0)
        with (
            self._open() as http,
            http.stream(method, path, timeout=timeout, **options) as answer,
        ):
            if not answer.is_success:
                answer.read()
            try:
                yield _check(answer)
            except httpx.TransportError:
                if not may_be_cut:
                    raise

    def wait_until_back(self) -> None:
        """Wait until the application is healthy: at least `_RETRY_S`, at most `_PATIENCE_S`."""
        deadline = time.monotonic() + _PATIENCE_S
        with self._make_client() as http:
            while time.monotonic() < deadline:
                time.sleep(_RETRY_S)
                with suppress(httpx.TransportError):
                    if http.get("/healthz").is_success:
                        return

    def _make_client(self) -> httpx.Client:
        url = httpx.URL(self.url)
        is_here = url.host in _LOOPBACK  # then no proxy is used, so that none gets the key
        return httpx.Client(
            base_url=url, headers=self._headers, timeout=_TIMEOUT, trust_env=not is_here
        )

    @contextmanager
    def _open(self) -> Iterator[httpx.Client]:
        try:
            with self._make_client() as client:
                yield client
        except _RefusedError as exc:
            fail(exc)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as exc:
            fail(f"--url {self.url!r}: {exc}")
        except httpx.TimeoutException:
            fail(f"{self.url} did not answer in time")
        except httpx.TransportError as exc:
            fail(
                f"{self.url} cannot be reached: {exc}; start it with 'tuneserve run', or name "
                "another address by --url"
            )
        except BrokenPipeError:  # the reader of standard output has closed it
            raise
        except OSError as exc:
            fail(exc)


class _RefusedError(Exception):
    """The application refused a request; the message is printed for the user."""


def _check(answer: httpx.Response) -> httpx.Response:
    if answer.is_success:
        return answer
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the answer was {answer.status_code} {answer.reason_phrase}"
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        message += f"; set {KEY_VARIABLE} to the application's key"
    raise _RefusedError(message)
