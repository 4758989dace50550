"""Every live route × every kind of key, compared with the table of roles in docs/security.md."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from apps.access.gate import Gate
from apps.access.keys import KeyStore
from apps.access.roles import ROLE_PERMISSIONS, Permission, Role, find_permission
from apps.http_api.app import build_routes
from apps.http_api.dependencies import Services
from apps.middleware.auth import _OPEN_PATHS, AccessControl
from apps.settings import UpstreamSettings
from apps.upstream.proxy import UpstreamProxy
from tests.apps.access.conftest import Connect

pytestmark = pytest.mark.anyio

DOCUMENT = Path(__file__).parents[3] / "docs" / "security.md"


def list_routes(app: FastAPI) -> Iterator[tuple[str, str, Permission | None]]:
    for route in app.routes:
        assert isinstance(route, Route), (
            "unknown type of route: check that its access is controlled"
        )
        for method in sorted(route.methods or ()):
            if route.path not in _OPEN_PATHS:
                yield method, route.path, find_permission(route)


def fill(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "none", path)


@pytest.mark.parametrize("has_upstreams", [False, True])
async def test_each_route_declares_its_permission(has_upstreams: bool, services: Services) -> None:
    if has_upstreams:
        upstream = UpstreamSettings(url="http://127.0.0.1:9")
        upstream_proxy = UpstreamProxy(services.models, [upstream], timeout_s=1)
        services = replace(services, text=upstream_proxy)
    routes = list(list_routes(build_routes(services)))
    assert len(routes) > 30
    assert [(method, path) for method, path, permission in routes if permission is None] == []


async def test_each_route_refuses_invalid_key(
    services: Services, keys: KeyStore, connect: Connect
) -> None:
    expired = keys.create("expired", Role.ADMIN, expires_at=1.0).text
    revoked = keys.create("revoked", Role.ADMIN)
    keys.revoke("revoked")
    valid = keys.create("valid", Role.ADMIN).text
    cases = {
        None: None,
        "wrong": "invalid_api_key",
        valid[:-1]: "invalid_api_key",
        f"{valid}x": "invalid_api_key",
        valid.replace("ts-", "xx-"): "invalid_api_key",
        expired: "expired_api_key",
        revoked.text: "revoked_api_key",
    }
    routes = [(method, path) for method, path, _ in list_routes(build_routes(services))]
    routes += [("GET", "/v1/unknown"), ("PATCH", "/v1/models"), ("OPTIONS", "/v1/files")]
    for given, code in cases.items():
        async with connect(given) as client:
            for method, path in routes:
                answer = await client.request(method, fill(path))
                assert answer.status_code == 401, (given, method, path)
                assert answer.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    assert answer.json()["error"]["code"] == code
                    assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("role", Role)
async def test_each_route_admits_only_roles_with_its_permission(
    role: Role, services: Services, keys: KeyStore, connect: Connect
) -> None:
    async with connect(keys.create(role.value, role).text) as client:
        for method, path, permission in list_routes(build_routes(services)):
            assert permission is not None
            answer = await client.request(method, fill(path), json={})
            if permission in ROLE_PERMISSIONS[role]:
                assert answer.status_code not in (401, 403), (method, path, answer.text)
                continue
            assert answer.status_code == 403, (method, path)
            error = answer.json()["error"]
            assert error["code"] == "insufficient_permission"
            assert f"{role.value!r} has the role {role.value!r}" in error["message"]
            assert permission.value in error["message"]


async def test_unknown_route_and_method_with_valid_key_get_404_and_405(
    keys: KeyStore, connect: Connect
) -> None:
    async with connect(keys.create("reader", Role.READ).text) as client:
        assert (await client.get("/v1/unknown")).status_code == 404
        assert (await client.patch("/v1/models")).status_code == 405
        assert (await client.head("/openapi.json")).status_code == 200


async def test_route_without_declared_permission_is_refused(services: Services) -> None:
    app = FastAPI()

    @app.get("/forgotten")
    def forget() -> str:
        return "secret"

    guarded = AccessControl(app, Gate("k" * 32), app.routes)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(guarded),
        base_url="http://localhost",
        headers={"authorization": f"Bearer {'k' * 32}"},
    ) as client:
        answer = await client.get("/forgotten")
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "undeclared_route"


async def test_websocket_connection_is_refused(services: Services) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def fail(*_: Any) -> None:
        raise AssertionError("the connection was accepted")

    await AccessControl(fail, Gate(None), [])({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_access_route_shows_role_and_permissions_of_key(
    keys: KeyStore, connect: Connect
) -> None:
    async with connect(keys.create("ann", Role.CHAT).text) as client:
        shown = (await client.get("/v1/access")).json()
    assert (shown["key"], shown["role"]) == ("ann", "chat")
    assert shown["permissions"] == ["any key", "models.read", "text.generate"]


def test_documented_role_table_matches_permissions() -> None:
    rows = re.findall(
        r"^\| `([\w. ]+)` \|.*\|(.*)\|(.*)\|(.*)\|(.*)\|$", DOCUMENT.read_text(), re.M
    )
    documented = {
        name: [role for role, mark in zip(Role, marks, strict=True) if mark.strip() == "✓"]
        for name, *marks in rows
    }
    assert documented == {
        each.value: [role for role in Role if each in ROLE_PERMISSIONS[role]] for each in Permission
    }


def test_documented_route_list_matches_routes(services: Services) -> None:
    section = DOCUMENT.read_text().split("## HTTP routes")[1].split("\n## ")[0]
    documented = re.findall(r"^\| ([A-Z, ]+) \| `([^`]+)` \| `?([^`|]+)`? \|$", section, re.M)
    found = {
        (method, path, "open" if path in _OPEN_PATHS else str(find_permission(route)))
        for route in build_routes(services).routes
        if isinstance(route, Route)
        for path in [route.path]
        for method in route.methods or ()
    }
    listed = {
        (method, path, permission.strip())
        for methods, path, permission in documented
        for method in methods.split(", ")
    }
    assert listed == found
