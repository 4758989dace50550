import json
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.middleware.body_limit import BodyLimit

pytestmark = pytest.mark.anyio
MAX_BYTES = 10


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(body)(scope, receive, send)


async def read_and_replace_error(scope: Scope, receive: Receive, send: Send) -> None:
    """Replace an exception by a status of 400, as a framework does with unknown exceptions."""
    try:
        await read_all(scope, receive, send)
    except HTTPException:
        await JSONResponse({"detail": "There was an error parsing the body"}, 400)(
            scope, receive, send
        )


async def answer_first(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await read_all(scope, receive, send)


class Exchange:
    """A request in pieces, and the messages of its response."""

    def __init__(self, *pieces: bytes, length: int | None = None, path: str = "/") -> None:
        headers = [] if length is None else [(b"content-length", str(length).encode())]
        self.scope = {"type": "http", "path": path, "headers": headers, "method": "POST"}
        self._pieces = list(pieces)
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        body = self._pieces.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(self._pieces)}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def run(self, app: ASGIApp, limits: dict[str, int] | None = None) -> tuple[int, bytes]:
        await BodyLimit(app, MAX_BYTES, limits)(self.scope, self.receive, self.send)
        (start,) = [m for m in self.sent if m["type"] == "http.response.start"]
        return start["status"], b"".join(m.get("body", b"") for m in self.sent)

    @property
    def num_unread(self) -> int:
        return len(self._pieces)


def read_error(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    return error


@pytest.mark.parametrize("length", [None, 10])
async def test_body_within_limit_is_forwarded(length: int | None) -> None:
    assert await Exchange(b"12345", b"67890", length=length).run(read_all) == (200, b"1234567890")


async def test_body_with_excessive_content_length_is_not_read() -> None:
    exchange = Exchange(b"12345678901", length=11)
    status, body = await exchange.run(read_all)
    assert (status, exchange.num_unread) == (413, 1)
    assert read_error(body)["message"] == "the request has 11 bytes; expected at most 10"


@pytest.mark.parametrize("app", [read_all, read_and_replace_error])
@pytest.mark.parametrize("length", [None, 5])
async def test_body_without_valid_length_is_read_only_to_limit(
    app: ASGIApp, length: int | None
) -> None:
    exchange = Exchange(b"12345", b"678901", b"2", b"3", length=length)
    status, body = await exchange.run(app)
    assert (status, exchange.num_unread) == (413, 2)
    error = read_error(body)
    assert error["message"] == "the request is too large; expected at most 10 bytes"
    assert error["type"] == "invalid_request_error"


async def test_body_limit_does_not_send_second_response_start() -> None:
    exchange = Exchange(b"12345678901")
    with pytest.raises(HTTPException):
        await exchange.run(answer_first)
    assert [message["type"] for message in exchange.sent] == ["http.response.start"]


async def test_routes_may_have_own_limits() -> None:
    limits = {"PUT /other": 30, "POST /large": 20}
    assert (await Exchange(b"x" * 15, path="/large/one").run(read_all, limits))[0] == 200
    assert (await Exchange(b"x" * 21, path="/large/one").run(read_all, limits))[0] == 413
    assert (await Exchange(b"x" * 15, path="/other").run(read_all, limits))[0] == 413
