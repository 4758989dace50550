"""Access without a key: allowed to local programs, refused to possibly remote clients."""

import pytest
from starlette.types import Receive, Scope, Send

from apps.access.exposure_check import ExposedError, check_exposure
from apps.access.gate import Gate
from apps.access.keys import KeyStore
from apps.access.roles import Role
from storage.layout import StorageLayout
from tests.apps.access.conftest import Connect
from tests.apps.conftest import AppClient

pytestmark = pytest.mark.anyio

LOCAL = {"client": ("127.0.0.1", 5), "base_url": "http://127.0.0.1:8000"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "evil.example:8000"}, 403),
        ({"host": "10.0.0.5:8000"}, 403),
        ({"host": ""}, 403),
        ({"host": "["}, 403),
        ({"host": "127.0.0.1]"}, 403),
        ({"host": "evil.example@127.0.0.1:8000"}, 403),
        ({"host": "127.0.0.1#evil.example"}, 403),
        ({"host": "127.0.0.1/evil.example"}, 403),
        ({"host": "localhost?.evil.example"}, 403),
        ([("host", "127.0.0.1:8000"), ("host", "evil.example")], 403),
        ({"origin": "http://127.0.0.1:8000"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ({"authorization": "Bearer unused"}, 200),
        ({"x-request-id": "mine", "x-stainless-lang": "python"}, 200),
    ],
)
async def test_keyless_request_is_admitted_only_from_local_program(
    headers: dict[str, str], status: int, connect: Connect
) -> None:
    async with connect(**LOCAL) as client:
        answer = await client.get("/v1/models", headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded",
        "Via",
        "X-Real-IP",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Forwarded-Anything",
        "CF-Connecting-IP",
        "CF-Ray",
        "True-Client-IP",
        "X-Client-IP",
        "Fly-Client-IP",
        "X-Original-Host",
        "X-Envoy-External-Address",
        "Tailscale-User-Login",
    ],
)
async def test_keyless_forwarded_request_is_refused(header: str, connect: Connect) -> None:
    async with connect(**LOCAL) as client:
        answer = await client.get("/v1/models", headers={header: "127.0.0.1"})
    assert answer.status_code == 403
    assert header.lower() in answer.json()["error"]["message"]


async def test_keyless_http_1_0_request_of_nginx_is_refused(connect: Connect) -> None:
    """Only HTTP/1.0 reveals the proxy: nginx adds no header, and our own address is the host."""
    async with connect(**LOCAL) as client:
        app = client.app

        async def speak_http_1_0(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "http_version": "1.0"}, receive, send)

        async with AppClient(speak_http_1_0, str(client.base_url)) as old_client:
            answer = await old_client.get("/v1/models", headers={"connection": "close"})
    assert answer.status_code == 403
    assert "HTTP/1.0" in answer.json()["error"]["message"]


async def test_keyless_remote_request_with_localhost_header_is_refused(
    connect: Connect,
) -> None:
    for address, status in (("127.0.0.1", 200), ("::1", 200), ("10.0.0.9", 403)):
        async with connect(**{**LOCAL, "client": (address, 5)}) as client:
            answer = await client.get("/v1/models", headers={"host": "localhost:8000"})
        assert answer.status_code == status


async def test_forwarded_request_with_valid_key_is_served(connect: Connect, keys: KeyStore) -> None:
    async with connect(keys.create("ann", Role.READ).text) as client:
        answer = await client.get("/v1/models", headers={"x-forwarded-for": "192.0.2.1"})
    assert answer.status_code == 200


async def test_require_key_refuses_keyless_requests_before_first_key_exists(
    connect: Connect, keys: KeyStore
) -> None:
    async with connect(require_key=True, **LOCAL) as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/healthz")).status_code == 200
        key = keys.create("ann", Role.READ).text
        headers = {"authorization": f"Bearer {key}"}
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


async def test_first_key_ends_keyless_access_to_running_application(
    connect: Connect, keys: KeyStore
) -> None:
    async with connect(**LOCAL) as client:
        assert (await client.get("/v1/models")).status_code == 200
        keys.create("ann", Role.READ)
        assert (await client.get("/v1/models")).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "box.example", ""])
def test_public_address_without_key_raises(host: str, layout: StorageLayout) -> None:
    with pytest.raises(ExposedError, match=r"^Ray Serve listens on .* no API key exists; expected"):
        check_exposure(Gate(None, KeyStore(layout)), host)


@pytest.mark.parametrize("host", [None, "127.0.0.1", "localhost", "::1", "127.8.0.1"])
def test_loopback_address_without_key_is_accepted(host: str | None, layout: StorageLayout) -> None:
    check_exposure(Gate(None, KeyStore(layout)), host)


def test_public_address_with_any_key_is_accepted(layout: StorageLayout) -> None:
    check_exposure(Gate("k" * 32, KeyStore(layout)), "0.0.0.0")
    check_exposure(Gate(None, KeyStore(layout), require_key=True), "0.0.0.0")
    KeyStore(layout).create("ann", Role.READ)
    check_exposure(Gate(None, KeyStore(layout)), "0.0.0.0")
