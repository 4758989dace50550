"""Failures of requests, each with its reason."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import httpx
import pytest

from apps.client.client import ApiClient
from apps.client.connection import ApiConnection, ApiRequest, ClientTimeouts, join_path
from apps.client.errors import (
    ApiClientError,
    ApiTimeoutError,
    ApiUnreachableError,
    ConnectionLostError,
    InvalidIdError,
    InvalidUrlError,
    RequestRefusedError,
    UnexpectedResponseError,
)
from tests.apps.client.scripted_server import (
    LAST_CHUNK,
    ScriptedServer,
    answer,
    answer_json,
    write_chunk,
)

Result = TypeVar("Result")
REQUEST = ApiRequest("GET", "/v1/models")


def run(url: str, call: Callable[[ApiConnection], Awaitable[Result]], **options: Any) -> Result:
    timeouts = ClientTimeouts(request_s=options.pop("request_s", 5.0))
    options = {"uses_proxies": True, "timeouts": timeouts, **options}

    async def connect() -> Result:
        connection = ApiConnection(url, lambda: None, **options)
        try:
            return await call(connection)
        finally:
            await connection.close()

    return asyncio.run(connect())


def fail(url: str, **options: Any) -> ApiClientError:
    with pytest.raises(ApiClientError) as caught:
        run(url, lambda connection: connection.read_object(REQUEST), **options)
    return caught.value


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


# Reasons of connection errors


def test_refused_connection_error_has_reason_of_operating_system() -> None:
    failed = fail(f"http://127.0.0.1:{find_free_port()}")
    assert isinstance(failed, ApiUnreachableError)
    assert str(failed).endswith("Connection refused")


def test_error_of_host_with_several_addresses_has_reason_of_last_attempt() -> None:
    failed = fail(f"http://localhost:{find_free_port()}")
    assert str(failed).endswith("Connection refused")


def test_unknown_host_error_has_reason_of_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", find_none)
    failed = fail("http://no-such-host.invalid")
    assert isinstance(failed, ApiUnreachableError)
    assert str(failed) == f"[Errno {int(socket.EAI_NONAME)}] Name or service not known"


def test_tls_handshake_error_has_reason_of_tls() -> None:
    failed = fail(ScriptedServer(b"HTTP/1.1 400 no\r\n\r\n").url.replace("http:", "https:"))
    assert isinstance(failed, ApiUnreachableError)
    assert str(failed).startswith("[SSL: ")


def test_certificate_error_has_reason_of_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            try:
                raise ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed")
            except ssl.SSLError as exc:
                raise httpx.ConnectError("", request=request) from exc

    failed = fail("https://example.invalid", transport=Refusing())
    assert "certificate verify failed: self-signed" in str(failed)


def test_late_response_raises_timeout_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        failed = fail(f"http://127.0.0.1:{silent.getsockname()[1]}", request_s=0.1)
    assert isinstance(failed, ApiTimeoutError)


@pytest.mark.parametrize("url", ["http://[::1", "x", "ftp://127.0.0.1", "http://a b"])
def test_invalid_url_raises_with_url(url: str) -> None:
    failed = fail(url)
    assert isinstance(failed, InvalidUrlError | ApiUnreachableError)
    assert failed.url == url
    assert str(failed)


def test_query_beyond_url_limit_raises_invalid_url_error() -> None:
    request = ApiRequest("GET", "/v1/models", query={"x": "a" * 100_000})
    with pytest.raises(InvalidUrlError):
        run("http://127.0.0.1:9", lambda connection: connection.send(request))


def test_loopback_requests_bypass_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = ScriptedServer(answer_json('{"through": "proxy"}'))
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server = ScriptedServer(answer_json('{"through": "nothing"}'))
    read = run(server.url, lambda connection: connection.read_object(REQUEST))
    assert read == {"through": "nothing"}
    read = run("http://other.invalid", lambda connection: connection.read_object(REQUEST))
    assert read == {"through": "proxy"}


# Responses


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        ('{"error": {"message": "no room", "code": "full"}}', "no room", "full"),
        ('{"error": {"message": "no room", "code": 3}}', "no room", None),
        ('{"error": "no room"}', "the answer was 409 Conflict", None),
        ("<html>", "the answer was 409 Conflict", None),
    ],
)
def test_refusal_has_api_message_and_code(body: str, message: str, code: str | None) -> None:
    failed = fail(ScriptedServer(answer(write_chunk(body), LAST_CHUNK, status="409 Conflict")).url)
    assert isinstance(failed, RequestRefusedError)
    assert (str(failed), failed.status, failed.code) == (message, 409, code)


@pytest.mark.parametrize("body", ["<html>", "[]", "null", "[" * 100_000])
def test_response_of_foreign_server_raises(body: str) -> None:
    failed = fail(ScriptedServer(answer(write_chunk(body), LAST_CHUNK)).url)
    assert isinstance(failed, UnexpectedResponseError)


def test_list_is_read_page_by_page() -> None:
    pages = [
        '{"data": [{"id": "a"}, {"id": "b"}], "has_more": true}',
        '{"data": [{"id": "c"}], "has_more": true}',
        '{"data": [], "has_more": true}',
    ]
    server = ScriptedServer(*map(answer_json, pages))
    entries = run(server.url, lambda connection: connection.read_entries("/v1/files"))
    assert entries == [{"id": "a"}, {"id": "b"}, {"id": "c"}]
    assert ["after=b" in server.requests[1], "after=c" in server.requests[2]] == [True, True]
    server = ScriptedServer(answer_json(pages[0]))
    entries = run(server.url, lambda connection: connection.read_entries("/v1/files", None, 1))
    assert entries == [{"id": "a"}]


def test_lost_connection_and_failed_connection_raise_different_errors() -> None:
    async def read(connection: ApiConnection) -> list[bytes]:
        async with connection.stream(REQUEST) as response:
            return [piece async for piece in response.aiter_bytes()]

    with pytest.raises(ConnectionLostError, match=r"^peer closed connection"):
        run(ScriptedServer(answer(write_chunk("part"))).url, read)
    with pytest.raises(ApiUnreachableError):
        run(f"http://127.0.0.1:{find_free_port()}", read)


# Retries


async def read_once(connection: ApiConnection) -> object:
    return await connection.retry_when_available(lambda: connection.read_object(REQUEST))


@pytest.mark.usefixtures("short_retry_timeout")
def test_request_is_retried_after_api_is_healthy_again() -> None:
    away = answer(LAST_CHUNK, status="503 Service Unavailable")
    server = ScriptedServer(away, away, answer_json("{}"), answer_json('{"id": "x"}'))
    assert run(server.url, read_once) == {"id": "x"}
    paths = [request.split()[1] for request in server.requests]
    assert paths == ["/v1/models", "/healthz", "/healthz", "/v1/models"]


@pytest.mark.usefixtures("short_retry_timeout")
def test_refused_request_is_not_retried() -> None:
    refusing = ScriptedServer(answer(LAST_CHUNK, status="404 Not Found"))
    with pytest.raises(RequestRefusedError):
        run(refusing.url, read_once)


@pytest.mark.usefixtures("short_retry_timeout")
def test_retry_raises_when_api_stays_unreachable() -> None:
    with pytest.raises(ApiUnreachableError):
        run(f"http://127.0.0.1:{find_free_port()}", read_once)


# Paths and uploads


@pytest.mark.parametrize("identifier", ["../../models/m", "prod#2", "a?b", "a/b"])
def test_id_with_path_characters_cannot_address_another_route(identifier: str) -> None:
    path = httpx.URL("http://x").join(join_path("/v1/models", identifier)).raw_path.decode()
    assert path.startswith("/v1/models/")
    assert path.count("/") == 3


@pytest.mark.parametrize("identifier", ["", ".", ".."])
def test_invalid_id_raises(identifier: str) -> None:
    with pytest.raises(InvalidIdError):
        join_path("/v1/models", identifier)


def test_upload_is_streamed() -> None:
    received = []

    async def archive() -> AsyncIterator[bytes]:
        for number in range(3):
            yield bytes([number])

    class Receiving(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            received.extend([piece async for piece in request.stream])
            return httpx.Response(200, json={"id": request.url.path.rpartition("/")[2]})

    async def upload() -> str:
        async with ApiClient("http://api", transport=Receiving()) as api:
            return (await api.models.add("m", archive())).id

    assert asyncio.run(upload()) == "m"
    assert received == [b"\x00", b"\x01", b"\x02"]
