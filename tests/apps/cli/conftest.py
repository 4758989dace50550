"""The API on a real socket, and `tuneserve` called with command-line arguments."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from typer.testing import CliRunner

from apps.cli.main import cli
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from tests.waiting import PATIENCE

Call = Callable[..., tuple[int, str]]
START_TIMEOUT_S = 10.0 * PATIENCE


@pytest.fixture
def url(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an application that runs in a thread."""
    monkeypatch.delenv("TUNESERVE_API_KEY", raising=False)
    config = uvicorn.Config(build_http(services, None), port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(START_TIMEOUT_S)


@pytest.fixture
def call(url: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A function that runs a command and returns its exit status and its output on one line."""
    monkeypatch.setenv("TUNESERVE_URL", url)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str, given: str | None = None) -> tuple[int, str]:
        done = CliRunner().invoke(cli, list(arguments), input=given)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, " ".join(done.output.split())

    return call
