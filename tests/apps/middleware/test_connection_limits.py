"""A real uvicorn, started as Serve's proxy starts it, and misbehaving clients on sockets."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
import uvicorn
import uvicorn.config
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from apps.middleware.connection_limits import read_connection_limits
from apps.middleware.proxy import build_middlewares

TIMEOUT_S = 5.0
BODY_HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"


async def count_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the length of the body, which is read after a pause of half a second."""
    await asyncio.sleep(0.5)
    size = len(await Request(scope, receive).body())
    await PlainTextResponse(str(size))(scope, receive, send)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", "overwritten by build_middlewares")
    monkeypatch.setenv("TUNESERVE_HTTP_HEADER_TIMEOUT_S", "0.3")
    monkeypatch.setenv("TUNESERVE_HTTP_BODY_IDLE_TIMEOUT_S", "0.3")
    monkeypatch.setenv("TUNESERVE_HTTP_MAX_CONNECTIONS", "5")
    build_middlewares()
    server = uvicorn.Server(
        uvicorn.Config(count_body, port=0, loop="asyncio", lifespan="off", log_level="critical")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(TIMEOUT_S)


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
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.sendall(b"\r\n")
        assert b"HTTP/1.1 408" in read_all(client)


def test_empty_line_during_response_does_not_interrupt_it(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(0.05)
        client.sendall(b"\r\n")  # the response takes longer than the header timeout
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_pipelined_requests_are_all_answered(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
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


def test_slow_body_and_slow_application_do_not_time_out(port: int) -> None:
    with connect(port) as client:
        client.sendall(BODY_HEAD)
        for _ in range(5):
            time.sleep(0.1)
            client.sendall(b"a" * 20)
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    slow = httpx.post(f"http://127.0.0.1:{port}/", content=b"a" * 1_000_000)
    assert slow.text == "1000000"


def test_header_timeout_restarts_for_kept_alive_connection(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            assert client.get("/").text == "0"
            time.sleep(0.4)  # longer than the header timeout


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
