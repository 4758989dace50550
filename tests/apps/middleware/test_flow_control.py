"""A proxy without its own limit between a fast client and a slow application."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.middleware import flow_control
from apps.middleware.flow_control import (
    ConsumptionReporting,
    DeliveryReporting,
    WindowedReading,
    WindowedSending,
)
from apps.middleware.proxy import build_middlewares

pytestmark = pytest.mark.anyio
PIECE = b"x" * 1_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "WINDOW_BYTES", 10_000)
    monkeypatch.setattr(flow_control, "_STEP_BYTES", 2_000)


class EagerProxy:
    """A proxy that reads requests without backpressure, like Serve's; `most` is its peak buffer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.most = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waiting: asyncio.Queue[Message] = asyncio.Queue()
        num_ahead = 0

        async def fetch() -> None:
            nonlocal num_ahead
            while True:
                message = await receive()
                waiting.put_nowait(message)
                num_ahead += len(message.get("body", b""))
                self.most = max(self.most, num_ahead)
                if not message.get("more_body"):
                    return

        async def hand_on() -> Message:
            nonlocal num_ahead
            message = await waiting.get()
            num_ahead -= len(message.get("body", b""))
            return message

        fetching = asyncio.create_task(fetch())
        await self.app(scope, hand_on, send)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)


class SlowApplication:
    """An application that reads a body with a pause at every piece, or answers without reading."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = reads
        self.headers: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = [name for name, _ in scope["headers"]]
        num_bytes = 0
        while self.reads:
            message = await receive()
            num_bytes += len(message.get("body", b""))
            await asyncio.sleep(0.001)
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % num_bytes})


async def make_body(num_pieces: int) -> AsyncIterator[bytes]:
    for _ in range(num_pieces):
        yield PIECE
        await asyncio.sleep(0)


async def send(app: ASGIApp, path: str = "/v1/files", num_pieces: int = 300) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.post(path, content=make_body(num_pieces))


async def test_body_is_read_at_most_one_window_ahead() -> None:
    proxy = EagerProxy(ConsumptionReporting(SlowApplication()))
    answer = await send(WindowedReading(proxy))
    assert answer.text == str(300 * len(PIECE))
    assert 5_000 < proxy.most <= 10_000 + 2_000 + len(PIECE)


async def test_body_is_read_at_once_without_proxy_middleware() -> None:
    proxy = EagerProxy(ConsumptionReporting(SlowApplication()))
    assert (await send(proxy)).text == str(300 * len(PIECE))
    assert proxy.most > 100_000


async def test_body_of_other_path_is_forwarded() -> None:
    proxy = EagerProxy(SlowApplication())
    assert (await send(WindowedReading(proxy), "/ui/upload")).text == str(300 * len(PIECE))


async def test_application_may_respond_before_reading_body() -> None:
    proxy = EagerProxy(ConsumptionReporting(SlowApplication(reads=False)))
    assert (await send(WindowedReading(proxy))).text == "0"


async def test_client_cannot_set_window_header() -> None:
    application = SlowApplication()
    app = WindowedReading(EagerProxy(ConsumptionReporting(application)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        headers = {"x-tuneserve-window": "1"}
        assert (await client.post("/v1/files", content=PIECE, headers=headers)).text == "1000"
    assert application.headers.count(b"x-tuneserve-window") == 1


def test_serve_loads_proxy_middleware() -> None:
    from ray.serve._private.http_util import validate_http_proxy_callback_return

    found = validate_http_proxy_callback_return(build_middlewares())
    names = (
        "CachedFiles",
        "WindowedReading",
        "DeliveryReporting",
        "StartingGate",
        "BodyCap",
        "DrainGate",
        "CleanScope",
    )
    assert list(map(repr, found)) == [f"Middleware({name})" for name in names]


# Responses

CONTENT = "/v1/files/file-1/content"


class EndlessQueue:
    """An unbounded queue between an application and a slower client, like a replica's."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.most = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waiting: asyncio.Queue[Message] = asyncio.Queue()
        num_ahead = 0

        async def put(message: Message) -> None:
            nonlocal num_ahead
            num_ahead += len(message.get("body", b""))
            self.most = max(self.most, num_ahead)
            waiting.put_nowait(message)

        answering = asyncio.ensure_future(self.app(scope, receive, put))
        more = True
        while more:
            message = await waiting.get()
            num_ahead -= len(message.get("body", b""))
            await send(message)
            more = message["type"] != "http.response.body" or message.get("more_body", False)
        await answering


async def answer_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    """Send without pauses and listen for a disconnect, as Starlette's streams do."""
    listening = asyncio.ensure_future(receive())
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(300):
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
    listening.cancel()


class Client:
    """A client that receives pieces with a delay, and disconnects after `num_pieces`."""

    def __init__(self, num_pieces: int = 10_000) -> None:
        self.num_bytes = 0
        self._num_pieces = num_pieces
        self._has_gone = asyncio.Event()
        self._has_asked = False

    async def receive(self) -> Message:
        if not self._has_asked:
            self._has_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._has_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0.001)
        self.num_bytes += len(message.get("body", b""))
        self._num_pieces -= 1
        if self._num_pieces == 0:
            self._has_gone.set()

    async def ask(self, app: ASGIApp, path: str = CONTENT) -> None:
        scope = {"type": "http", "path": path, "headers": [], "method": "GET"}
        async with asyncio.timeout(20):
            await app(scope, self.receive, self.send)


@pytest.mark.parametrize("path", [CONTENT, "/v1/models/a/archive", "/ui/models/a/archive"])
async def test_response_is_produced_at_most_one_window_ahead(path: str) -> None:
    replica, client = EndlessQueue(WindowedSending(answer_at_once)), Client()
    await client.ask(DeliveryReporting(replica), path)
    assert client.num_bytes == 300 * len(PIECE)
    assert 5_000 < replica.most <= 10_000 + 2_000 + len(PIECE)


@pytest.mark.parametrize("path", [CONTENT, "/v1/models"])
async def test_response_is_produced_at_once_without_proxy_middleware(path: str) -> None:
    replica, client = EndlessQueue(WindowedSending(answer_at_once)), Client()
    await client.ask(DeliveryReporting(replica) if path != CONTENT else replica, path)
    assert client.num_bytes == 300 * len(PIECE)
    assert replica.most > 100_000


async def test_disconnected_client_ends_response() -> None:
    await Client(num_pieces=20).ask(DeliveryReporting(WindowedSending(answer_at_once)))


async def test_replica_that_ends_while_reading_body_gets_503() -> None:
    async def end_early(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

    answer = await send(WindowedReading(end_early))
    assert answer.status_code == 503
    assert "try again" in answer.json()["error"]["message"]


async def test_body_to_other_application_is_forwarded() -> None:
    proxy = EagerProxy(SlowApplication())
    assert (await send(WindowedReading(proxy), "/other/v1/files")).text == str(300 * len(PIECE))
