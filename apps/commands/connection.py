"""How a command asks an application, and how it shows what was answered."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "TUNESERVE_API_KEY"
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)

Url = Annotated[
    str,
    typer.Option(envvar="TUNESERVE_URL", help=f"The application; its key is in {KEY_VARIABLE}."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print what the API answers.")]

notes = Console(stderr=True)
"""Where progress and errors go: what is asked for goes to standard output alone."""


class Connection:
    """An application at an address; every refusal ends the command with its message."""

    def __init__(self, url: str) -> None:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Ask for something, and return the JSON that is answered."""
        with self._open() as http:
            return _check(http.request(method, path, **options)).json()

    def list_all(
        self, path: str, limit: int | None = None, params: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Follow the pages of a list to its end, or until there are `limit` entries."""
        entries: list[dict[str, Any]] = []
        after: dict[str, Any] = {}
        while True:
            page = self.ask("GET", path, params={**(params or {}), **after})
            entries += page["data"]
            if not page.get("has_more") or (limit is not None and len(entries) >= limit):
                return entries[:limit]
            after = {"after": entries[-1]["id"]}

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """Ask for something that comes piece by piece; nothing limits how long it takes."""
        timeout = httpx.Timeout(None, connect=5.0)
        with (
            self._open() as http,
            http.stream(method, path, timeout=timeout, **options) as answer,
        ):
            if not answer.is_success:
                answer.read()
            yield _check(answer)

    @contextmanager
    def _open(self) -> Iterator[httpx.Client]:
        try:
            with httpx.Client(base_url=self.url, headers=self._headers, timeout=_TIMEOUT) as client:
                yield client
        except _RefusedError as exc:
            fail(str(exc))
        except httpx.TimeoutException:
            fail(f"{self.url} did not answer in time")
        except httpx.TransportError as exc:
            fail(
                f"{self.url} cannot be reached: {exc}; start it with 'tuneserve run', or name "
                "another address by --url"
            )


class _RefusedError(Exception):
    """The application refused; its message is for the person at the terminal."""


def _check(answer: httpx.Response) -> httpx.Response:
    if answer.is_success:
        return answer
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the answer was {answer.status_code} {answer.reason_phrase}"
    if answer.status_code == 401:
        message += f"; set {KEY_VARIABLE} to the application's key"
    raise _RefusedError(message)


def show(answer: Any, as_json: bool, render: Callable[[Any], object]) -> None:
    """Print an answer, as JSON or as `render` makes it."""
    if as_json:
        print_json(answer)
    else:
        Console().print(render(answer), highlight=False)


def print_json(answer: Any) -> None:
    """Print an answer on one line, for programs."""
    typer.echo(json.dumps(answer, ensure_ascii=False))


def say(message: str) -> None:
    """Print a sentence as it is."""
    Console().print(message, markup=False, highlight=False)


def fail(reason: object) -> NoReturn:
    """End the command with a reason."""
    notes.print(f"error: {reason}", markup=False, highlight=False)
    raise typer.Exit(1)


def show_time(unix_s: float | None) -> str:
    """Write a time as the local clock shows it."""
    return "" if unix_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


def show_size(num_bytes: int) -> str:
    """Write a number of bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
