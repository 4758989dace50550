"""Files of the page that are cached in memory: which ones, for whom, and how many."""

import asyncio
from collections.abc import Mapping

import pytest
from httpx import ASGITransport, AsyncClient, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.middleware import cached_files
from apps.middleware.cached_files import (
    CACHED_FILE_HEADERS,
    FOREVER,
    PERMISSION_AGE_S,
    CachedFiles,
)

pytestmark = pytest.mark.anyio

GZIP = {"accept-encoding": "gzip"}
PLAIN = {"accept-encoding": "identity"}


class Origin:
    """An application that counts its requests; its responses have two parts."""

    def __init__(self, headers: Mapping[str, str], status: int = 200) -> None:
        self.num_requests = 0
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the number of the request."""
        self.num_requests += 1
        start = {"type": "http.response.start", "status": self._status, "headers": self._headers}
        await send(start)
        body = f"file {self.num_requests}".encode()
        await send({"type": "http.response.body", "body": body[:4], "more_body": True})
        await send({"type": "http.response.body", "body": body[4:]})


async def get(
    app: ASGIApp,
    address: str = "/assets/a.js",
    headers: Mapping[str, str] = GZIP,
    method: str = "GET",
) -> Response:
    async with AsyncClient(transport=ASGITransport(app), base_url="http://page") as client:
        return await client.request(method, address, headers=headers)


async def test_immutable_file_is_requested_once_for_each_address_and_encoding() -> None:
    origin = Origin({**CACHED_FILE_HEADERS, "x-mark": "1"})
    app = CachedFiles(origin)
    first, second = await get(app), await get(app)
    assert (first.text, second.text) == ("file 1", "file 1")
    assert second.headers == first.headers
    assert (await get(app, headers=PLAIN)).text == "file 2"
    assert (await get(app, "/assets/a.js?v=2")).text == "file 3"
    assert (await get(app, "/assets/b.js")).text == "file 4"
    assert (await get(app)).text == "file 1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"cache-control": FOREVER}, 200),  # of another application: for one user
        (CACHED_FILE_HEADERS, 206),
        ({**CACHED_FILE_HEADERS, "content-length": "9"}, 200),  # it ended early
    ],
)
async def test_other_responses_are_not_cached(headers: Mapping[str, str], status: int) -> None:
    app = CachedFiles(Origin(headers, status))
    assert [(await get(app)).text for _ in range(2)] == ["file 1", "file 2"]


@pytest.mark.parametrize(
    ("method", "headers", "query"),
    [
        ("HEAD", {}, ""),
        ("GET", {"range": "bytes=0-1"}, ""),
        ("GET", {"if-none-match": '"1"'}, ""),
        ("GET", {}, "v" * 101),
    ],
)
async def test_other_requests_are_forwarded(
    method: str, headers: Mapping[str, str], query: str
) -> None:
    origin = Origin(CACHED_FILE_HEADERS)
    app = CachedFiles(origin)
    await get(app)
    for _ in range(2):
        await get(app, f"/assets/a.js?{query}", {**GZIP, **headers}, method)
    assert origin.num_requests == 3


async def test_cached_files_are_dropped_before_they_exceed_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cached_files, "MAX_CACHED_BYTES", 2 * (4096 + len("file 1")))
    origin = Origin(CACHED_FILE_HEADERS)
    app = CachedFiles(origin)
    for name in "ab":
        await get(app, f"/assets/{name}.js")
    assert (await get(app, "/assets/a.js")).text == "file 1"
    await get(app, "/assets/c.js")
    assert (await get(app, "/assets/a.js")).text == "file 4"


async def test_file_is_replaced_when_the_application_sends_another() -> None:
    origin, now = Origin(CACHED_FILE_HEADERS), 100.0
    app = CachedFiles(origin, lambda: now)
    assert [(await get(app)).text for _ in range(2)] == ["file 1", "file 1"]
    now += PERMISSION_AGE_S
    assert [(await get(app)).text for _ in range(3)] == ["file 2", "file 3", "file 3"]


@pytest.mark.parametrize("headers", [{}, {"cache-control": "no-cache"}])
async def test_file_is_dropped_when_the_application_withdraws_it(
    headers: Mapping[str, str],
) -> None:
    marked, other, now = Origin(CACHED_FILE_HEADERS), Origin(headers, 404), 100.0
    origin: ASGIApp = marked

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await origin(scope, receive, send)

    app = CachedFiles(application, lambda: now)
    await get(app)
    now += PERMISSION_AGE_S
    origin = other
    assert (await get(app)).status_code == 404
    await get(app, "/assets/b.js")
    assert (await get(app)).status_code == 404


async def test_cached_file_is_sent_in_parts() -> None:
    app = CachedFiles(Origin(CACHED_FILE_HEADERS))
    assert (await get(app)).text == "file 1"
    parts: list[Message] = []

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_counted(message: Message) -> None:
            parts.append(message)
            await send(message)

        await app(scope, receive, send_counted)

    assert (await get(count)).text == "file 1"
    assert [part["body"] for part in parts[1:]] == [b"file", b" 1", b""]


async def test_address_is_cached_after_a_request_that_failed() -> None:
    origin, failures = Origin(CACHED_FILE_HEADERS), [ConnectionError("lost")]

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if failures:
            raise failures.pop()
        await origin(scope, receive, send)

    app = CachedFiles(application)
    with pytest.raises(ConnectionError):
        await get(app)
    assert [(await get(app)).text for _ in range(2)] == ["file 1", "file 1"]


async def test_large_file_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_files, "MAX_FILE_BYTES", len("file"))
    app = CachedFiles(Origin(CACHED_FILE_HEADERS))
    assert [(await get(app)).text for _ in range(2)] == ["file 1", "file 2"]


async def test_only_one_of_concurrent_responses_is_collected() -> None:
    """So memory does not grow with the number of clients that read slowly."""
    is_sent, is_read, guard = asyncio.Event(), asyncio.Event(), Guard()

    async def send_slowly(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_when_read(message: Message) -> None:
            await send(message)
            if (b"user-agent", b"slow") in scope["headers"]:
                is_sent.set()
                await is_read.wait()

        await guard(scope, receive, send_when_read)

    app, with_key = CachedFiles(send_slowly), {**GZIP, "authorization": "key"}
    slow = asyncio.create_task(get(app, headers={**with_key, "user-agent": "slow"}))
    await is_sent.wait()
    for num_requests in (2, 3):
        await get(app, headers=with_key)
        assert guard.num_requests == num_requests
    is_read.set()
    await slow
    await get(app, headers=with_key)
    assert guard.num_requests == 3


class Guard:
    """An application whose files only senders with the header `authorization: key` may read."""

    def __init__(self) -> None:
        self.num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 200 with a file, or 401."""
        self.num_requests += 1
        is_permitted = (b"authorization", b"key") in scope["headers"]
        headers = {**CACHED_FILE_HEADERS, "x-request-id": str(self.num_requests)}
        start = {
            "type": "http.response.start",
            "status": 200 if is_permitted else 401,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        await send(start)
        await send({"type": "http.response.body", "body": b"file"})


async def test_cached_file_is_sent_only_to_senders_with_recent_permission() -> None:
    guard, now = Guard(), 100.0
    app = CachedFiles(guard, lambda: now)
    with_key = {**GZIP, "authorization": "key"}
    for _ in range(2):
        assert (await get(app, headers=with_key)).text == "file"
    assert guard.num_requests == 1
    for headers in (GZIP, {**GZIP, "authorization": "other"}):
        assert (await get(app, headers=headers)).status_code == 401
    assert guard.num_requests == 3
    now += PERMISSION_AGE_S
    for _ in range(2):  # the same file again, which stays cached
        assert (await get(app, headers=with_key)).status_code == 200
        assert guard.num_requests == 4


@pytest.mark.parametrize(
    "other",
    [
        {"host": "elsewhere.example"},
        {"origin": "http://elsewhere.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-mode": "no-cors"},
        {"x-forwarded-for": "10.0.0.1"},
        {"cookie": "a=b"},
    ],
)
async def test_senders_differ_by_all_that_access_control_considers(other: dict[str, str]) -> None:
    guard = Guard()
    app = CachedFiles(guard)
    with_key = {**GZIP, "authorization": "key"}
    await get(app, headers=with_key)
    await get(app, headers={**with_key, "accept": "text/css", "referer": "http://page/"})
    assert guard.num_requests == 1
    await get(app, headers={**with_key, **other})
    assert guard.num_requests == 2


async def test_sender_may_read_files_of_one_application_only() -> None:
    guard = Guard()
    app = CachedFiles(guard)
    with_key = {**GZIP, "authorization": "key"}
    for address in ("/ui/assets/a.js", "/other/assets/a.js", "/ui/assets/a.js"):
        await get(app, address, headers=with_key)
    assert guard.num_requests == 2
    await get(app, "/other/assets/a.js", headers=with_key)
    assert guard.num_requests == 2


async def test_refusal_ends_permission() -> None:
    origin = Guard()
    refused: set[str] = set()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in refused:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body"})
        else:
            await origin(scope, receive, send)

    app = CachedFiles(application)
    with_key = {**GZIP, "authorization": "key"}
    await get(app, "/ui/a.js", with_key)
    refused.add("/ui/b.js")
    assert (await get(app, "/ui/b.js", with_key)).status_code == 403
    refused.add("/ui/a.js")
    assert (await get(app, "/ui/a.js", with_key)).status_code == 403


async def test_oldest_permission_is_dropped_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cached_files, "MAX_SENDERS", 2)
    guard = Guard()
    app = CachedFiles(guard)
    for agent in "abc":
        await get(app, headers={**GZIP, "authorization": "key", "user-agent": agent})
    assert guard.num_requests == 3
    for agent, num_requests in (("c", 3), ("b", 3), ("a", 4)):
        await get(app, headers={**GZIP, "authorization": "key", "user-agent": agent})
        assert guard.num_requests == num_requests


async def test_cached_file_has_no_id_of_another_request() -> None:
    app = CachedFiles(Guard())
    with_key = {**GZIP, "authorization": "key"}
    first, second = await get(app, headers=with_key), await get(app, headers=with_key)
    assert first.headers["x-request-id"] == "1"
    assert "x-request-id" not in second.headers


async def test_response_that_sets_cookie_is_not_cached() -> None:
    app = CachedFiles(Origin({**CACHED_FILE_HEADERS, "set-cookie": "a=b"}))
    assert [(await get(app)).text for _ in range(2)] == ["file 1", "file 2"]


async def test_content_that_the_server_reads_itself_is_not_cached() -> None:
    async def send_path(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in CACHED_FILE_HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.pathsend", "path": "/a.js"})

    async def receive() -> Message:
        raise AssertionError

    app = CachedFiles(send_path)
    scope = {"type": "http", "method": "GET", "path": "/assets/a.js", "headers": []}
    for _ in range(2):
        sent: list[Message] = []

        async def collect(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        await app(scope, receive, collect)
        assert [message["type"] for message in sent][1:] == ["http.response.pathsend"]


async def test_headers_that_a_guard_adds_are_not_cached() -> None:
    cached = CachedFiles(Origin(CACHED_FILE_HEADERS))

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-guard", b"1"))
            await send(message)

        await cached(scope, receive, send_marked)

    for _ in range(3):
        answer = await get(guard)
        assert answer.headers.get_list("x-guard") == ["1"]
