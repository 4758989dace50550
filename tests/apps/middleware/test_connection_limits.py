"""A real uvicorn, started as Serve's proxy starts it, and misbehaving clients on sockets."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest
import uvicorn
import uvicorn.config
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from apps.middleware.connection_limits import LimitedHttpProtocol, read_connection_limits
from apps.middleware.proxy import build_middlewares
from tests.waiting import wait_for, wait_until

TIMEOUT_S = 5.0
LIMIT_S = 0.3
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
BODY_HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"


class Counter:
    """An application that answers with the length of the body, once `may_read` is set."""

    def __init__(self) -> None:
        self.has_begun, self.may_read = threading.Event(), threading.Event()
        self.may_read.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.has_begun.set()
        await wait_for(self.may_read.is_set, TIMEOUT_S, "the test lets the application read")
        size = len(await Request(scope, receive).body())
        await PlainTextResponse(str(size))(scope, receive, send)

    def pause(self) -> None:
        """Let the next request wait for `may_read`."""
        self.has_begun.clear()
        self.may_read.clear()


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test can advance, so that timeouts pass without waiting."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s

    def skip(self, duration_s: float) -> None:
        """Receive what clients have sent, advance the clock, and run the timeouts that are over."""

        async def advance() -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.skipped_s += duration_s
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(advance(), self).result(TIMEOUT_S)


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def loop() -> SkippingLoop:
    return SkippingLoop()


@pytest.fixture
def server(
    counter: Counter, loop: SkippingLoop, monkeypatch: pytest.MonkeyPatch
) -> Iterator[uvicorn.Server]:
    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", "overwritten by build_middlewares")
    monkeypatch.setenv("TUNESERVE_HTTP_HEADER_TIMEOUT_S", str(LIMIT_S))
    monkeypatch.setenv("TUNESERVE_HTTP_BODY_IDLE_TIMEOUT_S", str(LIMIT_S))
    monkeypatch.setenv("TUNESERVE_HTTP_MAX_CONNECTIONS", "5")
    build_middlewares()
    server = uvicorn.Server(uvicorn.Config(counter, port=0, lifespan="off", log_level="critical"))

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(server.serve())

    thread = threading.Thread(target=serve)
    thread.start()
    wait_until(lambda: server.started, TIMEOUT_S, "the server starts")
    yield server
    server.should_exit = True
    thread.join(TIMEOUT_S)


@pytest.fixture
def port(server: uvicorn.Server) -> int:
    return int(server.servers[0].sockets[0].getsockname()[1])


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S)


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes the connection; a timeout fails the test."""
    received = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


def test_endless_headers_are_refused(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx-long: ")
        num_sent = 0
        with suppress(OSError):
            while num_sent < 48_000_000:
                num_sent += client.send(b"a" * 65536)
        assert num_sent < 16_000_000, "the server read more than the socket buffers hold"
        assert read_all(client)[:12] in (b"HTTP/1.1 431", b"")


@pytest.mark.parametrize("partial_request", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
def test_half_open_connection_is_closed(port: int, partial_request: bytes) -> None:
    with connect(port) as client:
        client.sendall(partial_request)
        assert read_all(client).startswith(b"HTTP/1.1 408")


def test_empty_line_after_request_does_not_keep_connection_open(port: int) -> None:
    with connect(port) as client:
        client.sendall(GET)
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.sendall(b"\r\n")
        assert b"HTTP/1.1 408" in read_all(client)


def test_empty_line_during_response_does_not_interrupt_it(
    port: int, counter: Counter, loop: SkippingLoop
) -> None:
    counter.pause()
    with connect(port) as client:
        client.sendall(GET)
        assert counter.has_begun.wait(TIMEOUT_S)
        client.sendall(b"\r\n")
        loop.skip(1.5 * LIMIT_S)  # the response takes longer than the header timeout
        counter.may_read.set()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_pipelined_requests_are_all_answered(
    port: int, counter: Counter, loop: SkippingLoop
) -> None:
    counter.pause()
    with connect(port) as client:
        client.sendall(GET * 3)
        assert counter.has_begun.wait(TIMEOUT_S)
        loop.skip(1.5 * LIMIT_S)
        counter.may_read.set()
        received = b""
        while received.count(b"HTTP/1.1 200") < 3:
            piece = client.recv(1000)
            assert piece, received
            received += piece


@pytest.mark.parametrize("trailers", [b"a:b\r\n" * 10_000, b"a:" + b"b" * 65536])
def test_endless_trailers_are_refused(port: int, trailers: bytes) -> None:
    with connect(port) as client:
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        client.sendall(head + b"5\r\nhello\r\n0\r\n")
        num_sent = 0
        with suppress(OSError):
            while num_sent < 48_000_000:
                num_sent += client.send(trailers)
        assert num_sent < 16_000_000, "the server read more than the socket buffers hold"
        assert read_all(client)[:12] in (b"HTTP/1.1 431", b"")


def test_idle_body_times_out(port: int) -> None:
    with connect(port) as client:
        client.sendall(BODY_HEAD + b"a" * 50)
        assert read_all(client).startswith(b"HTTP/1.1 408")


def test_slow_body_does_not_time_out(port: int, loop: SkippingLoop) -> None:
    with connect(port) as client:
        client.sendall(BODY_HEAD)
        for _ in range(5):
            loop.skip(0.5 * LIMIT_S)
            client.sendall(b"a" * 20)
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_slow_application_does_not_time_out(
    port: int, server: uvicorn.Server, counter: Counter, loop: SkippingLoop
) -> None:
    def is_paused() -> bool:
        (connection,) = server.server_state.connections
        return isinstance(connection, LimitedHttpProtocol) and connection.flow.read_paused

    counter.pause()
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(
            httpx.post, f"http://127.0.0.1:{port}/", content=b"a" * 1_000_000, timeout=TIMEOUT_S
        )
        assert counter.has_begun.wait(TIMEOUT_S)
        wait_until(is_paused, TIMEOUT_S, "the server stops reading")
        for _ in range(3):
            loop.skip(1.1 * LIMIT_S)
        counter.may_read.set()
        assert slow.result().text == "1000000"


def test_header_timeout_restarts_for_kept_alive_connection(port: int, loop: SkippingLoop) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            assert client.get("/").text == "0"
            loop.skip(1.5 * LIMIT_S)


def test_connection_beyond_limit_gets_503(port: int) -> None:
    clients = [connect(port) for _ in range(6)]
    assert read_all(clients[-1]).startswith(b"HTTP/1.1 503")
    for client in clients:
        client.close()


def test_limit_out_of_range_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESERVE_HTTP_HEADER_TIMEOUT_S", "0")
    with pytest.raises(
        ValidationError, match="^1 validation error for ConnectionLimits\nheader_timeout_s\n"
    ):
        read_connection_limits()
