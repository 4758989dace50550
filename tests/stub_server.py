"""A stub of OpenAI's API on a real socket, with responses that the test sets."""

import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.waiting import PATIENCE

START_TIMEOUT_S = 10.0 * PATIENCE


@dataclass
class StubServer:
    """The models and responses of the stub, and the requests that it received."""

    models: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=lambda: ["one ", "two "])
    refusal: Response | None = None  # for generation requests
    listing_refusal: Response | None = None
    listing_delay_s: float = 0.0
    are_ascii: bool = False  # whether responses escape all non-ASCII characters
    delay_s: float = 0.0  # before each word
    num_words_sent: int | None = None  # words before a stream breaks off; all if None
    num_listings: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    num_open: int = 0  # responses in progress
    clients: set[tuple[str, int] | None] = field(default_factory=set)  # of generation requests
    url: str = ""

    async def list_models(self, request: Request) -> Response:
        self.num_listings += 1
        self.keys.append(request.headers.get("authorization"))
        await anyio.sleep(self.listing_delay_s)
        if self.listing_refusal is not None:
            return self.listing_refusal
        return JSONResponse({"object": "list", "data": [{"id": name} for name in self.models]})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        self.clients.add(request.client)
        self.keys.append(request.headers.get("authorization"))
        if self.refusal is not None:
            return self.refusal
        if body["model"] not in self.models:
            return JSONResponse({"error": {"message": "no such model"}}, 404)
        is_chat = request.url.path.endswith("chat/completions")
        if body.get("stream"):
            return StreamingResponse(self._stream(is_chat), media_type="text/event-stream")
        with self._counted():
            await anyio.sleep(self.delay_s)
        text = "".join(self.words)
        choice = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        answer = _build(is_chat, "", {**choice, "finish_reason": "stop"})
        return Response(self._write(answer), media_type="application/json")

    async def _stream(self, is_chat: bool) -> AsyncIterator[str]:
        with self._counted():
            for number, word in enumerate(self.words):
                await anyio.sleep(self.delay_s)
                if number == self.num_words_sent:
                    return
                delta = {"delta": {"content": word}} if is_chat else {"text": word}
                chunk = _build(is_chat, ".chunk", {**delta, "finish_reason": None})
                yield f"data: {self._write(chunk)}\n\n"
            yield "data: [DONE]\n\n"

    def _write(self, answer: dict[str, Any]) -> str:
        return json.dumps(answer, ensure_ascii=self.are_ascii)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1


def _build(is_chat: bool, part: str, choice: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "theirs-1",
        "object": f"chat.completion{part}" if is_chat else "text_completion",
        "created": 1,
        "model": "what-they-call-it",
        "system_fingerprint": None,
        "choices": [{"index": 0, **choice}],
    }


def refuse(status: int, message: str, **headers: str) -> Response:
    """Build an error response in OpenAI's format."""
    error = {"message": message, "type": "x", "param": "temperature", "code": status}
    return JSONResponse({"error": error}, status, headers)


def refuse_plainly(status: int, message: str) -> Response:
    """Build a plain-text error response, as a proxy would send."""
    return PlainTextResponse(message, status)


@contextmanager
def serve_stub(port: int = 0) -> Iterator[StubServer]:
    """Run a stub server in a thread; its state may be changed while it runs."""
    stub = StubServer()
    routes = [
        Route("/v1/models", stub.list_models),
        Route("/v1/chat/completions", stub.complete, methods=["POST"]),
        Route("/v1/completions", stub.complete, methods=["POST"]),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes), host="127.0.0.1", port=port, log_level="warning", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while not server.started:
        assert time.monotonic() < deadline, "the stub server did not start"
        time.sleep(0.01)
    stub.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield stub
    finally:
        server.should_exit = True
        thread.join(START_TIMEOUT_S)
