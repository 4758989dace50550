"""The example nginx configuration, with other ports and shorter timeouts, in front of a stub."""

import asyncio
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from apps.access.gate import Gate
from apps.middleware.auth import AccessControl

CONFIGURATION = Path(__file__).parents[3] / "examples" / "nginx.conf"
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
KEY = "s3cret"
TIMEOUT_S = 10.0
STREAM = "/v1/fine_tuning/jobs/job/events"

pytestmark = pytest.mark.skipif(
    NGINX is None and "CI" not in os.environ, reason="nginx is not installed; CI installs it"
)


class Stub:
    """An application that answers with request headers and body length, or streams events."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.begun.append(scope["path"])
        if scope["path"] == STREAM:
            stream = StreamingResponse(self._stream(), media_type="text/event-stream")
            await stream(scope, receive, send)
            return
        size = 0
        with suppress(ClientDisconnect):
            async for piece in request.stream():
                size += len(piece)
        await JSONResponse({**request.headers, "size": size})(scope, receive, send)

    async def _stream(self) -> AsyncIterator[bytes]:
        yield b"data: first\n\n"
        while not self.may_end.is_set():
            await asyncio.sleep(0.02)
        yield b"data: last\n\n"


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        assert time.monotonic() < deadline, f"no process listens on port {port}"
        time.sleep(0.05)


def replace(text: str, pattern: str, replacement: str) -> str:
    changed, num_found = re.subn(pattern, replacement, text)
    assert num_found, f"the example has no {pattern!r}"
    return changed


def write_configuration(folder: Path, upstream_port: int, port: int) -> Path:
    """Write the example with other ports, folders and timeouts; returns the path of the file."""
    text = CONFIGURATION.read_text()
    text = replace(text, r"/run/nginx\.pid", str(folder / "nginx.pid"))
    text = replace(text, r"/var/log/nginx", str(folder))
    text = replace(text, r"/etc/ssl/tuneserve", str(folder))
    text = replace(text, r"127\.0\.0\.1:8000", f"127.0.0.1:{upstream_port}")
    text = replace(text, r"listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    text = replace(text, r"listen 80;", f"listen 127.0.0.1:{find_port()};")
    text = replace(text, r"client_header_timeout 10s", "client_header_timeout 1s")
    text = replace(text, r"client_body_timeout 30s", "client_body_timeout 1s")
    text = replace(text, r"limit_conn clients 64", "limit_conn clients 4")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    text = replace(text, r"server_tokens off;", f"server_tokens off;\n{folders}")
    target = folder / "nginx.conf"
    target.write_text(text)
    return target


@pytest.fixture(scope="module")
def stub() -> Stub:
    return Stub()


@pytest.fixture(scope="module")
def port(stub: Stub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The TLS port of nginx."""
    assert NGINX is not None, "nginx is not installed"
    folder = tmp_path_factory.mktemp("nginx")
    make_certificate = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    subprocess.run(
        ["openssl", *make_certificate.split(), "-keyout", "privkey.pem", "-out", "fullchain.pem"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    upstream = uvicorn.Server(
        uvicorn.Config(AccessControl(stub, Gate(KEY)), port=0, lifespan="off", log_level="critical")
    )
    thread = threading.Thread(target=upstream.run)
    thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    while not upstream.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    port = find_port()
    upstream_port = upstream.servers[0].sockets[0].getsockname()[1]
    configuration = write_configuration(folder, upstream_port, port)
    nginx = subprocess.Popen(
        [NGINX, "-p", folder, "-c", configuration, "-g", "daemon off;"], stderr=subprocess.PIPE
    )
    try:
        wait_for_port(port)
        yield port
    finally:
        nginx.terminate()
        nginx.communicate(timeout=TIMEOUT_S)
        upstream.should_exit = True
        thread.join(TIMEOUT_S)


@pytest.fixture
def client(port: int) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEY}"}
    url = f"https://127.0.0.1:{port}"
    with httpx.Client(base_url=url, headers=headers, verify=False, timeout=TIMEOUT_S) as client:
        yield client


def connect(port: int) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    return context.wrap_socket(plain)


def read_all(connection: ssl.SSLSocket) -> bytes:
    """Read until the server closes the connection; a timeout fails the test."""
    received = b""
    with suppress(ConnectionError, ssl.SSLEOFError):
        while piece := connection.recv(65536):
            received += piece
    return received


def test_nginx_forwards_key_and_client_address_and_drops_serve_headers(
    client: httpx.Client,
) -> None:
    obeyed = (
        *("x-request-timeout-seconds", "x-request-disconnect-disabled"),
        *("serve_multiplexed_model_id", "serve-multiplexed-model-id", "x-tuneserve-window"),
    )
    sent = {**dict.fromkeys(obeyed, "1"), "x-forwarded-for": "8.8.8.8", "forwarded": "for=8.8.8.8"}
    received = client.get("/v1/models", headers=sent).json()
    assert not set(obeyed) & set(received)
    assert received["x-forwarded-for"] == "127.0.0.1"
    assert received["x-forwarded-proto"] == "https"
    assert received["host"] == client.base_url.netloc.decode()
    assert "forwarded" not in received
    assert client.get("/v1/models", headers={"authorization": "Bearer no"}).status_code == 401


def test_nginx_does_not_buffer_streams(client: httpx.Client, stub: Stub) -> None:
    with client.stream("GET", STREAM) as response:
        lines = response.iter_lines()
        assert next(lines) == "data: first"
        stub.may_end.set()
        assert "data: last" in list(lines)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/models/mine", "/ui/gradio_api/upload"])
def test_nginx_streams_large_uploads(
    client: httpx.Client, port: int, stub: Stub, path: str
) -> None:
    def send() -> Iterator[bytes]:
        for number in range(12):
            if number == 2:
                deadline = time.monotonic() + TIMEOUT_S
                while path not in stub.begun:
                    assert time.monotonic() < deadline, "nginx buffers the body"
                    time.sleep(0.01)
            yield bytes(1_000_000)

    assert client.put(path, content=send()).json()["size"] == 12_000_000
    with connect(port) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 60000000000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")


def test_nginx_refuses_large_bodies_of_other_paths(client: httpx.Client) -> None:
    assert client.post("/v1/chat/completions", content=bytes(9_000_000)).status_code == 413
    assert client.post("/v1/files/x", content=bytes(9_000_000)).status_code == 413


def test_nginx_refuses_long_headers(client: httpx.Client) -> None:
    assert client.get("/", headers={"x-long": "a" * 20_000}).status_code == 400


@pytest.mark.parametrize(
    "begun",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n",
        b"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer s3cret\r\n"
        b"content-length: 900\r\n\r\nsome",
    ],
)
def test_nginx_closes_connection_with_incomplete_request(port: int, begun: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(begun)
        begin = time.monotonic()
        read_all(connection)
        assert time.monotonic() - begin < 5


def test_nginx_limits_connections_per_client(client: httpx.Client, port: int, stub: Stub) -> None:
    stub.may_end.clear()
    head = f"GET {STREAM} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n"
    held = [connect(port) for _ in range(4)]
    try:
        for connection in held:
            connection.sendall(head.encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert client.get("/v1/models").status_code == 429
    finally:
        stub.may_end.set()
        for connection in held:
            connection.close()
