"""Access to the page, and that its API calls carry the key of their visitor."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

from apps.access.audit import FAILURES_PER_MINUTE
from apps.access.keyless import API_KEY_VARIABLE
from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.access.settings import AccessSettings
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from apps.ui.protection import access
from apps.ui.protection.access import PageGuard, Verdict
from apps.ui.settings import UiSettings
from storage.layout import StorageLayout
from tests.apps.stub_api import LocalServer
from tests.apps.ui.page_server import PageCaller, Result, build_page, serve_page

pytestmark = pytest.mark.anyio

NUM_CHUNKS = 6
MODEL = "m"
SETTINGS = ["", 0.0, 1, None, 16, ""]
"""System prompt, temperature, top-p, seed, number of tokens and stop texts."""


@pytest.fixture
def api_url(services: Services) -> Iterator[str]:
    with LocalServer(build_http(services, None)) as url:
        yield url


@pytest.fixture
def page(api_url: str) -> Iterator[str]:
    with LocalServer(build_page(UiSettings(api_url=api_url))) as url:
        yield url


def open_page(page: str, key: str | None = None, **headers: str) -> httpx.Response:
    auth = None if key is None else ("anyone", key)
    return httpx.get(f"{page}/theme.css", auth=auth, headers=headers, trust_env=False)


def test_page_without_keys_opens_only_for_local_browser(page: str) -> None:
    cases: list[tuple[dict[str, str], int]] = [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "[broken"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"x-forwarded-for": "127.0.0.1"}, 403),
        ({"x-real-ip": "127.0.0.1"}, 403),
        ({"via": "1.1 proxy"}, 403),
    ]
    for headers, status in cases:
        for key in (None, "anything"):
            assert open_page(page, key, **headers).status_code == status, (headers, key)


async def request_of_guard(
    guard: PageGuard, host: str = "127.0.0.1", path: str = "/theme.css"
) -> int:
    transport = httpx.ASGITransport(guard, client=("127.0.0.1", 5000))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
        return (await client.get(path)).status_code


async def test_api_is_asked_every_few_seconds_and_every_request_is_checked_to_be_local(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdicts = [Verdict.NOT_NEEDED, Verdict.REFUSED]

    async def ask_api(key: str | None) -> Verdict:
        return verdicts.pop(0)

    guard = PageGuard(PlainTextResponse("page"), ask_api, needs_key=False)
    statuses = [await request_of_guard(guard, host) for host in ("127.0.0.1", "evil", "localhost")]
    assert (statuses, len(verdicts)) == ([200, 403, 200], 1)
    monkeypatch.setattr(access, "VERDICT_AGE_S", 0.0)
    guard = PageGuard(PlainTextResponse("page"), ask_api, needs_key=False)
    verdicts[:] = [Verdict.NOT_NEEDED, Verdict.REFUSED]
    assert [await request_of_guard(guard) for _ in range(2)] == [200, 401]


async def test_api_is_asked_once_for_files_that_are_requested_at_the_same_time() -> None:
    asked, answering = [], asyncio.Event()

    async def ask_api(key: str | None) -> Verdict:
        asked.append(key)
        await answering.wait()
        return Verdict.NOT_NEEDED

    guard = PageGuard(PlainTextResponse("page"), ask_api, needs_key=False)
    requests = [asyncio.create_task(request_of_guard(guard)) for _ in range(20)]
    while not asked:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    requests.pop(0).cancel()
    answering.set()
    assert await asyncio.gather(*requests) == [200] * 19
    assert asked == [None]


@pytest.mark.parametrize("path", ["/", "/models", "/models/a/archive", "/assets"])
async def test_first_key_applies_to_all_but_files_at_once(path: str) -> None:
    verdicts = [Verdict.NOT_NEEDED, Verdict.REFUSED]

    async def ask_api(key: str | None) -> Verdict:
        return verdicts.pop(0)

    guard = PageGuard(PlainTextResponse("page"), ask_api, needs_key=False)
    assert await request_of_guard(guard) == 200
    assert await request_of_guard(guard, path=path) == 401
    assert await request_of_guard(guard) == 401


def test_page_with_keys_requires_valid_key(page: str, layout: StorageLayout) -> None:
    keys = KeyStore(layout)
    key = keys.create("ann", Role.CHAT).text
    refused = open_page(page)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic")
    for wrong in ("wrong", "", key[:-1], "é"):
        assert open_page(page, wrong).status_code == 401
    assert open_page(page, key, **{"x-forwarded-for": "192.0.2.1"}).status_code == 200
    assert open_page(page, key, origin="http://evil").status_code == 403
    assert open_page(page, authorization="Basic not-base64").status_code == 401


def test_refused_requests_are_logged_up_to_limit(
    page: str, layout: StorageLayout, caplog: pytest.LogCaptureFixture
) -> None:
    key = KeyStore(layout).create("ann", Role.CHAT).text
    num_requests = FAILURES_PER_MINUTE + 10
    assert open_page(page).status_code == 401, "the page did not request a key"
    for _ in range(num_requests):
        assert open_page(page, key, origin="http://evil.example").status_code == 403
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.name == "apps.ui.protection.access"
    ]
    assert FAILURES_PER_MINUTE <= len(lines) < num_requests
    assert "the page refused GET '/theme.css' from 127.0.0.1: 403" in lines[0]
    assert "evil.example" in lines[0]
    assert key not in caplog.text


@pytest.mark.parametrize("is_api_up", [True, False])
def test_environment_key_opens_page(
    is_api_up: bool, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "s3cret")
    with LocalServer(build_http(services, "s3cret")) as api_url:
        url = api_url if is_api_up else "http://127.0.0.1:9"
        with LocalServer(build_page(UiSettings(api_url=url))) as page:
            assert open_page(page).status_code == 401
            assert open_page(page, "s3cret").status_code == (200 if is_api_up else 503)
            assert open_page(page, "wrong").status_code == (401 if is_api_up else 503)


def test_require_key_applies_to_page(services: Services) -> None:
    settings = AccessSettings(require_key=True)
    with (
        LocalServer(build_http(services, None, settings)) as url,
        LocalServer(build_page(UiSettings(api_url=url, require_key=True))) as page,
    ):
        assert open_page(page).status_code == 401


def test_page_applies_role_of_key(api_url: str, layout: StorageLayout) -> None:
    key = KeyStore(layout).create("cy", Role.CHAT).text
    with serve_page(UiSettings(api_url=api_url)) as page, visit(page, key) as visitor:
        asked = {"view": "list", "applied": 0}
        opened = visitor.call(visitor.find_function("update_runs"), [None], event_data=asked)
    assert "\\u0026#x27;cy" in opened.text or "&#x27;cy&#x27;" in opened.text
    assert "has the role" in opened.text


def test_concurrent_visitors_use_their_own_keys() -> None:
    seen: list[tuple[str, str]] = []
    with (
        LocalServer(build_key_echo_api(seen)) as api,
        serve_page(UiSettings(api_url=api, require_key=True)) as page,
        ThreadPoolExecutor(16) as pool,
    ):
        answers = list(pool.map(lambda name: chat(page, name), ["ann", "bob"] * 8))
    for name, answer in zip(["ann", "bob"] * 8, answers, strict=True):
        other = {"ann": "bob", "bob": "ann"}[name]
        assert f"{name} " * NUM_CHUNKS in answer.text
        assert other not in answer.text
    assert len(seen) == 16
    assert all(key == f"Bearer {question}" for question, key in seen)


def chat(page: str, name: str) -> Result:
    """Chat as one visitor; every piece of the answer names the key of its request."""
    with visit(page, name) as visitor:
        session = uuid.uuid4().hex
        for function, data in (("ask", [name, None, None, MODEL, SETTINGS]), ("respond", [None])):
            result = visitor.call(visitor.find_function(function), data, session_hash=session)
            assert result.success, result.text
    return result


@contextmanager
def visit(page: str, key: str) -> Iterator[PageCaller]:
    visitor = PageCaller(page, auth=("anyone", key))
    yield visitor
    visitor.close()


def build_key_echo_api(seen: list[tuple[str, str]]) -> FastAPI:
    """Build an API whose answers consist of the key of their request."""
    app = FastAPI()

    @app.get("/v1/access")
    def show_access(request: Request) -> dict[str, Any]:
        return {"key": request.headers["authorization"]}

    @app.get("/v1/models")
    def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1}]}

    @app.post("/v1/chat/completions")
    async def answer(request: Request) -> StreamingResponse:
        body = await request.json()
        key = request.headers["authorization"]
        seen.append((body["messages"][-1]["content"], key))
        return StreamingResponse(
            stream(key.removeprefix("Bearer ")), media_type="text/event-stream"
        )

    async def stream(name: str) -> AsyncIterator[str]:
        for _ in range(NUM_CHUNKS):
            await asyncio.sleep(0.01)  # lets other streams interleave
            chunk = {"model": "m", "choices": [{"delta": {"content": f"{name} "}}]}
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    return app
