"""The limits that Serve's proxy applies to a request before it reaches an application."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.middleware.proxy_limits import BodyCap, CleanScope

pytestmark = pytest.mark.anyio
MAX_BYTES = 20_000
PIECE = bytes(1000)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESERVE_HTTP_MAX_BODY_BYTES", str(MAX_BYTES))


class Reader:
    """An application that reads a whole body, like Serve's proxy, and answers with its length."""

    def __init__(self, *, answers_first: bool = False) -> None:
        self.num_bytes = 0
        self.is_disconnected = False
        self._answers_first = answers_first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._answers_first:
            await self._answer(send)
        more = True
        while more:
            message = await receive()
            self.is_disconnected = message["type"] == "http.disconnect"
            self.num_bytes += len(message.get("body", b""))
            more = not self.is_disconnected and message["more_body"]
        if not self._answers_first:
            await self._answer(send)

    async def _answer(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % self.num_bytes})


async def send_pieces(app: ASGIApp, num_pieces: int, path: str = "/v1/x") -> httpx.Response:
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(num_pieces):
            yield PIECE

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://x", timeout=20
    ) as client:
        return await client.post(path, content=stream())


async def test_body_within_limit_passes() -> None:
    answer = await send_pieces(BodyCap(Reader()), MAX_BYTES // len(PIECE))
    assert (answer.status_code, answer.text) == (200, str(MAX_BYTES))


async def test_body_is_read_only_to_limit() -> None:
    reader = Reader()
    answer = await send_pieces(BodyCap(reader), 10_000)
    assert answer.status_code == 413
    assert "at most 20,000 bytes" in answer.json()["error"]["message"]
    assert reader.num_bytes <= MAX_BYTES
    assert reader.is_disconnected


async def test_started_response_is_kept() -> None:
    reader = Reader(answers_first=True)
    assert (await send_pieces(BodyCap(reader), 10_000)).status_code == 200
    assert reader.num_bytes <= MAX_BYTES


@pytest.mark.parametrize("path", ["/v1/files", "/v1/models/new", "/ui/gradio_api/upload"])
async def test_large_bodies_of_windowed_paths_pass(path: str) -> None:
    answer = await send_pieces(BodyCap(Reader()), 1000, path)
    assert answer.text == str(1000 * len(PIECE))


@pytest.mark.parametrize(
    ("header", "is_kept"),
    [
        ((b"x-request-id", b"req-1.a:b_c"), True),
        ((b"X-Request-Id", b"1 -- DELETE /v1/models/prod 200"), False),
        ((b"x-request-id", "\u202e".encode()), False),
        ((b"x-request-id", b"\xff"), False),
        ((b"x-request-id", b"x" * 65), False),
        ((b"x-other", b"1 -- DELETE"), True),
    ],
)
async def test_invalid_request_id_header_is_removed(
    header: tuple[bytes, bytes], is_kept: bool
) -> None:
    scope = await find_scope({"headers": [header]})
    assert scope["headers"] == ([header] if is_kept else [])


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (("192.0.2.7", 1), ("192.0.2.7", 1)),
        (("2001:db8::7", 0), ("2001:db8::7", 0)),
        (("<script>", 0), ("invalid", 0)),
        (("1.2.3.4" * 9, 0), ("invalid", 0)),
        (None, None),
    ],
)
async def test_invalid_client_address_is_replaced(
    client: tuple[str, int] | None, expected: tuple[str, int] | None
) -> None:
    assert (await find_scope({"headers": [], "client": client}))["client"] == expected


async def find_scope(parts: dict[str, object]) -> Scope:
    """Return the scope that an application behind the middleware receives."""
    found: asyncio.Future[Scope] = asyncio.get_running_loop().create_future()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.set_result(scope)

    async def never() -> Message:
        raise AssertionError

    async def drop(_: Message) -> None:
        raise AssertionError

    await CleanScope(app)({"type": "http", **parts}, never, drop)
    return await found
