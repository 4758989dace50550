import httpx
import pytest
from fastapi import FastAPI
from ray.serve._private.http_util import convert_object_to_asgi_messages
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from apps.middleware.proxy import build_middlewares
from apps.middleware.starting import StartingGate

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def answer_as_serve_proxy(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer as Serve's proxy does before any application is deployed."""
    text = f"Path '{scope['path']}' not found. Ping http://.../-/routes for available routes."
    for message in convert_object_to_asgi_messages(text, status_code=404):
        await send(message)


async def get(app: object, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path)


async def test_request_during_start_gets_503_with_retry_after() -> None:
    answer = await get(StartingGate(answer_as_serve_proxy), "/v1/fine_tuning/jobs/ftjob-1")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["code"] == "starting"


async def test_server_wide_options_request_gets_404_during_start() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "OPTIONS", "path": "*", "headers": []}
    await StartingGate(answer_as_serve_proxy)(scope, receive, send)
    assert sent[0]["status"] == 404


@pytest.mark.parametrize("text", ["Not Found", ""])
async def test_application_404_is_unchanged(text: str) -> None:
    answer = await get(StartingGate(PlainTextResponse(text, 404)), "/ui/none")
    assert (answer.status_code, answer.text) == (404, text)
    answer = await get(StartingGate(FastAPI()), "/v1/none")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_serve_proxy_loads_starting_gate() -> None:
    assert "Middleware(StartingGate)" in map(repr, build_middlewares())
