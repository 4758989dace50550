"""Fixtures: the page against a stub of the API, with another stub in each test.

Building the page takes half a second of a core, so a file has one. The page keeps nothing of the
API but the sparklines of runs, by their ids.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.ui.settings import UiSettings
from tests.apps.stub_api import STEPS, LocalServer, StubApi, build_stub
from tests.apps.stub_evaluations import add_sample_evaluations
from tests.apps.ui.page_server import serve_page
from tests.waiting import wait_until

IDLE_TIMEOUT_S = 30


class StubSlot:
    """An API that passes requests to the stub of the present test, and refuses them otherwise."""

    def __init__(self) -> None:
        self.url = ""
        self._app: ASGIApp = PlainTextResponse("no test is running", 503)
        self._num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] == "lifespan":
            return
        self._num_open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_open -= 1

    @contextmanager
    def use(self, stub: StubApi) -> Iterator[None]:
        """Answer requests by a stub during the body, and wait for the end of its requests."""
        stub.url = self.url
        refusing, self._app = self._app, build_stub(stub)
        try:
            yield
        finally:
            self._app = refusing
            wait_until(lambda: self._num_open == 0, IDLE_TIMEOUT_S, "the test's requests end")


@pytest.fixture(scope="module")
def stub_slot() -> Iterator[StubSlot]:
    slot = StubSlot()
    with LocalServer(slot) as slot.url:
        yield slot


@pytest.fixture(scope="module")
def page_of_slot(stub_slot: StubSlot) -> Iterator[str]:
    with serve_page(UiSettings(api_url=stub_slot.url)) as url:
        yield url


@pytest.fixture
def stub(stub_slot: StubSlot) -> Iterator[StubApi]:
    """The API of one test, without runs; a file that needs more of it overrides this fixture."""
    stub = StubApi()
    with stub_slot.use(stub):
        yield stub


@pytest.fixture
def address(stub: StubApi, page_of_slot: str) -> str:
    """The address of the page; what uses it ends before the stub does."""
    return page_of_slot


@pytest.fixture(scope="session")
def sample_address() -> Iterator[str]:
    """The address of a page against a stub with a run in each state, for tests that only read."""
    stub = StubApi()
    progress = {"step": 2, "num_steps": STEPS, "loss": 3.0, "tokens_per_s": 10.0}
    stub.add_job("ftjob-1", "queued", waiting_for="number 2 in the queue")
    stub.add_job("ftjob-2", "failed", error={"message": "loss is nan"})
    stub.add_job("ftjob-3", "succeeded", fine_tuned_model="base-tuned", progress=progress)
    stub.add_job("ftjob-4", "paused", progress=progress)
    stub.add_job("ftjob-5", "cancelled")
    stub.add_job("ftjob-6", "running", progress={**progress, "remaining_s": 3.0})
    stub.add_event("ftjob-6", "Workers started")
    add_sample_evaluations(stub.evaluations_of_models)
    with LocalServer(build_stub(stub)) as stub.url, serve_page(UiSettings(api_url=stub.url)) as url:
        yield url
