"""The connection of the commands to an application: the only event loop, and error messages."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from apps.cli.output import fail
from apps.client.client import ApiClient
from apps.client.connection import ClientTimeouts
from apps.client.errors import (
    ApiClientError,
    ApiTimeoutError,
    ApiUnavailableError,
    InvalidIdError,
    InvalidUrlError,
    RequestRefusedError,
    UnexpectedResponseError,
)

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "TUNESERVE_API_KEY"
_TIMEOUTS = ClientTimeouts(request_s=60.0, change_s=60.0, generation_s=None, transfer_s=None)
_UNAUTHORIZED = 401

Url = Annotated[
    str,
    typer.Option(
        envvar="TUNESERVE_URL", help=f"URL of the application; {KEY_VARIABLE} has its key."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the API's response as JSON.")]
Result = TypeVar("Result")


def run_with_api(url: str, work: Callable[[ApiClient], Awaitable[Result]]) -> Result:
    """Run a coroutine function with a client of the application at a URL, and return its result.

    A request that fails ends the command with an error message. Ctrl-C cancels the coroutine and
    raises `KeyboardInterrupt`.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    if key is not None and not key.isascii():
        fail(f"{KEY_VARIABLE} has a character that is not ASCII; expected an API key")

    async def run() -> Result:
        async with ApiClient(url, lambda: key, timeouts=_TIMEOUTS, uses_proxies=True) as api:
            return await work(api)

    try:
        with asyncio.Runner() as runner:
            return runner.run(run())
    except ApiClientError as exc:
        fail(_describe_failure(exc, url.rstrip("/")))
    except BrokenPipeError:  # the reader of standard output has closed it
        raise
    except OSError as exc:
        fail(exc)


def _describe_failure(exc: ApiClientError, url: str) -> str:
    match exc:
        case RequestRefusedError(status=status) if status == _UNAUTHORIZED:
            return f"{exc}; set {KEY_VARIABLE} to the application's key"
        case InvalidIdError():
            return f"{exc.identifier!r} is not a valid id"
        case InvalidUrlError():
            return f"--url {url!r}: {exc}"
        case ApiTimeoutError():
            return f"{url} did not answer in time"
        case ApiUnavailableError():
            return (
                f"{url} cannot be reached: {exc}; start it with 'tuneserve run', or set another "
                "address with --url"
            )
        case UnexpectedResponseError():
            return f"the server at {url} is not Tuneserve"
    return str(exc)
