"""While the application stops, new requests are refused; those in progress finish."""

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.drain import DRAIN_FOLDER_VARIABLE, DrainSignal
from apps.middleware.drain import DrainGate
from apps.middleware.proxy import build_middlewares

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Gated:
    """An application whose responses wait until the test sets `may_answer`."""

    def __init__(self, folder: Path) -> None:
        self.signal = DrainSignal(folder)
        self.has_begun, self.may_answer = asyncio.Event(), asyncio.Event()
        transport = httpx.ASGITransport(DrainGate(self._answer, self.signal))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.has_begun.set()
        await self.may_answer.wait()
        await PlainTextResponse("answer")(scope, receive, send)

    async def count(self) -> int:
        answer = await self.client.get("/healthz")
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")
        return int(answer.json()["requests_in_progress"])


async def test_draining_refuses_new_requests_and_completes_active_ones(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    begun = asyncio.create_task(gated.client.post("/v1/chat/completions"))
    async with asyncio.timeout(10):
        await gated.has_begun.wait()
    gated.signal.begin()
    refused = await gated.client.post("/v1/chat/completions")
    assert refused.status_code == 503
    assert refused.headers["retry-after"].isdecimal()
    assert refused.json()["error"]["type"] == "server_error"
    assert await gated.count() == 1
    gated.may_answer.set()
    assert (await begun).text == "answer"
    assert await gated.count() == 0


@pytest.mark.parametrize(
    "path", ["/ui/gradio_api/heartbeat/abc", "/v1/fine_tuning/jobs/ftjob-1/events"]
)
async def test_endless_streams_do_not_count_as_requests_in_progress(
    tmp_path: Path, path: str
) -> None:
    gated = Gated(tmp_path)
    begun = asyncio.create_task(gated.client.get(path))
    async with asyncio.timeout(10):
        await gated.has_begun.wait()
    gated.signal.begin()
    assert await gated.count() == 0
    gated.may_answer.set()
    assert (await begun).status_code == 200


async def test_draining_application_is_alive_and_not_ready(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    gated.may_answer.set()
    gated.signal.begin()
    assert (await gated.client.get("/livez")).status_code == 200
    assert (await gated.client.get("/readyz")).status_code == 503


async def test_proxy_middleware_reads_drain_signal_from_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DRAIN_FOLDER_VARIABLE, str(tmp_path))
    app: ASGIApp = PlainTextResponse("answer")
    for middleware in build_middlewares():
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        assert (await client.get("/v1/models")).status_code == 200
        DrainSignal(tmp_path).begin()
        assert (await client.get("/v1/models")).status_code == 503
