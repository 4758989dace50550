"""Generation requests that are relayed to an upstream, over real sockets."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from apps.middleware.body_limit import MAX_TEXT_BYTES
from apps.settings import UpstreamSettings
from apps.upstream import proxy, upstream_client
from apps.upstream.proxy import UpstreamProxy
from apps.upstream.upstream_client import find_upstream_key
from serving.errors import ModelInUseError
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.apps.conftest import Echo
from tests.stub_server import StubServer, refuse, refuse_plainly, serve_stub
from tests.tiny_model import build_tiny_model

pytestmark = pytest.mark.anyio

CHAT = {"model": "latest", "messages": [{"role": "user", "content": "Hello"}]}
TIMEOUT_S = 5.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNESERVE_API_KEY", "THEIR_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with serve_stub() as stub:
        stub.models = ["tiny"]
        yield stub


@pytest.fixture
def other() -> Iterator[StubServer]:
    with serve_stub() as stub:
        yield stub


@pytest.fixture
def store(layout: StorageLayout, tmp_path: Path) -> ModelStore:
    """A store in which `latest` points to 'third'; its earlier models are 'second' and 'tiny'."""
    store = ModelStore(layout)
    for seed, name in enumerate(("second", "third"), start=1):
        store.add(build_tiny_model(tmp_path / name, seed=seed), name)
        store.point_alias("latest", name)
    return store


Open = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
async def open_client(services: Services, store: ModelStore) -> AsyncIterator[Open]:
    """A function that opens the API with a proxy to the given upstreams."""
    async with AsyncExitStack() as stack:

        async def open_client(*urls: str, timeout_s: float = TIMEOUT_S) -> httpx.AsyncClient:
            upstream_proxy = await stack.enter_async_context(
                open_proxy(store, *urls, timeout_s=timeout_s)
            )
            app = build_http(replace(services, text=upstream_proxy), None)
            transport = httpx.ASGITransport(app)
            return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")

        yield open_client


@asynccontextmanager
async def open_proxy(
    store: ModelStore, *urls: str, timeout_s: float = TIMEOUT_S
) -> AsyncIterator[UpstreamProxy]:
    upstreams = [UpstreamSettings.model_validate(url) for url in urls]
    upstream_proxy = UpstreamProxy(store, upstreams, timeout_s=timeout_s)
    await upstream_proxy.open()
    yield upstream_proxy
    await upstream_proxy.close()


async def ask(client: httpx.AsyncClient, **options: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={**CHAT, **options})


def read_events(answer: httpx.Response) -> list[Any]:
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


# Choice of the model


@pytest.mark.parametrize(
    ("listed", "answering"),
    [
        (["tiny", "second", "third"], "third"),
        (["tiny", "second"], "second"),
        (["tiny", "unknown"], "tiny"),
    ],
)
async def test_alias_resolves_to_newest_of_its_models_on_upstream(
    open_client: Open, stub: StubServer, listed: list[str], answering: str
) -> None:
    stub.models = listed
    answer = await ask(await open_client(stub.url))
    assert answer.headers["x-model-id"] == answering
    assert answer.json()["model"] == answering
    assert [asked["model"] for asked in stub.asked] == [answering]


async def test_alias_does_not_resolve_to_rolled_back_model(
    open_client: Open, stub: StubServer, store: ModelStore
) -> None:
    store.roll_back_alias("latest")
    stub.models = ["tiny", "third"]
    assert (await ask(await open_client(stub.url))).headers["x-model-id"] == "tiny"


async def test_named_model_without_upstream_gets_503(open_client: Open, stub: StubServer) -> None:
    client = await open_client(stub.url)
    refused = await ask(client, model="third")
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "model_not_served"
    assert "they have: tiny" in refused.json()["error"]["message"]
    assert (await ask(client, model="nobody")).status_code == 404
    assert (await ask(client, model=["tiny"])).status_code == 400
    assert stub.asked == []


async def test_request_is_sent_to_upstream_that_has_model(
    open_client: Open, stub: StubServer, other: StubServer
) -> None:
    other.models = ["third"]
    client = await open_client(stub.url, other.url)
    assert (await ask(client, model="tiny")).headers["x-model-id"] == "tiny"
    assert (await ask(client)).headers["x-model-id"] == "third"
    assert [len(server.asked) for server in (stub, other)] == [1, 1]


async def test_upstream_without_application_has_no_models(
    open_client: Open, stub: StubServer, other: StubServer
) -> None:
    other.listing_refusal = refuse_plainly(404, "not found")
    answer = await ask(await open_client(other.url, stub.url))
    assert answer.headers["x-model-id"] == "tiny"


async def test_model_unloaded_by_upstream_is_resolved_again(
    open_client: Open, stub: StubServer
) -> None:
    stub.models = ["tiny", "third"]
    client = await open_client(stub.url)
    assert (await ask(client)).headers["x-model-id"] == "third"
    stub.models = ["tiny"]
    assert (await ask(client)).headers["x-model-id"] == "tiny"
    assert [asked["model"] for asked in stub.asked] == ["third", "third", "tiny"]


async def test_model_on_upstream_is_not_deleted(
    open_client: Open, stub: StubServer, store: ModelStore, short_listing_interval: None
) -> None:
    stub.models = ["tiny", "second", "third"]
    await open_client(stub.url)
    with pytest.raises(ModelInUseError):
        store.delete("second")
    stub.models = ["third"]
    await wait_for_listing(stub)
    store.delete("second")
    assert store.find("second") is None


async def test_model_on_second_upstream_is_not_deleted(
    open_client: Open,
    stub: StubServer,
    other: StubServer,
    store: ModelStore,
    short_listing_interval: None,
) -> None:
    stub.models = other.models = ["second"]
    await open_client(stub.url, other.url)
    stub.models = []
    await wait_for_listing(stub)
    with pytest.raises(ModelInUseError):
        store.delete("second")
    other.listing_refusal = refuse_plainly(404, "not found")
    await wait_for_listing(other)
    store.delete("second")


# Model lists of upstreams


@pytest.fixture
def short_listing_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "LISTING_INTERVAL_S", 0.01)


async def wait_for_listing(stub: StubServer) -> None:
    """Wait until a model list that is requested after this call has been read."""
    number = stub.num_listings + 3
    await wait_until(lambda: stub.num_listings >= number)


async def test_requests_do_not_list_upstream_models(open_client: Open, stub: StubServer) -> None:
    client = await open_client(stub.url)
    answers = await asyncio.gather(*(ask(client) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert stub.num_listings == 1


async def test_new_upstream_model_is_detected_by_polling(
    open_client: Open, stub: StubServer, short_listing_interval: None
) -> None:
    client = await open_client(stub.url)
    stub.models = ["tiny", "third"]
    await wait_for_listing(stub)
    assert (await ask(client)).headers["x-model-id"] == "third"


WRONG_LISTINGS = [{"data": None}, {"data": [{}]}, {"data": ["tiny"]}, {"models": []}, [1]]


@pytest.mark.parametrize("wrong", [*WRONG_LISTINGS, "down", "garbled", "slow"], ids=str)
async def test_last_listing_is_used_until_it_expires(
    open_client: Open,
    stub: StubServer,
    store: ModelStore,
    monkeypatch: pytest.MonkeyPatch,
    short_listing_interval: None,
    wrong: Any,
) -> None:
    client = await open_client(stub.url)
    monkeypatch.setattr(upstream_client, "LISTING_TIMEOUT_S", 0.2)
    store.roll_back_alias("latest")
    refusals = {"down": refuse_plainly(500, "no"), "garbled": refuse_plainly(200, "<html>")}
    if wrong == "slow":
        stub.listing_delay_s = 1.0
    else:
        stub.listing_refusal = refusals[wrong] if isinstance(wrong, str) else JSONResponse(wrong)
    await wait_for_listing(stub)
    assert (await ask(client)).headers["x-model-id"] == "tiny"
    monkeypatch.setattr(upstream_client, "LISTING_AGE_S", 0.0)
    answer = await ask(client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert "a server does not answer" in answer.json()["error"]["message"]


async def test_hanging_upstream_does_not_delay_other_requests(
    open_client: Open, stub: StubServer, other: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_client, "LISTING_TIMEOUT_S", 1.0)
    monkeypatch.setattr(proxy, "LISTING_INTERVAL_S", 0.01)
    other.listing_delay_s = 2.0
    client = await open_client(other.url, stub.url)
    began = time.monotonic()
    for _ in range(3):
        assert (await ask(client)).headers["x-model-id"] == "tiny"
        assert (await client.get("/healthz")).status_code == 200
    assert time.monotonic() - began < 0.9


async def test_unreachable_upstream_is_skipped_at_once(open_client: Open, stub: StubServer) -> None:
    with serve_stub() as first:
        first.models = ["tiny", "third"]
        client = await open_client(first.url, stub.url)
        assert (await ask(client)).headers["x-model-id"] == "third"
    assert (await ask(client)).headers["x-model-id"] == "tiny"
    assert stub.num_listings == 1, "the models were listed again"


async def test_serve_lifespan_opens_and_closes_upstream_proxy(
    services: Services, store: ModelStore, stub: StubServer
) -> None:
    upstream_proxy = UpstreamProxy(store, [UpstreamSettings(url=stub.url)], timeout_s=TIMEOUT_S)
    app = build_http(replace(services, text=upstream_proxy), None)
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outgoing: asyncio.Queue[Any] = asyncio.Queue()
    lifespan = asyncio.create_task(app({"type": "lifespan"}, incoming.get, outgoing.put))
    await incoming.put({"type": "lifespan.startup"})
    assert (await outgoing.get())["type"] == "lifespan.startup.complete"
    await upstream_proxy.check()
    store.point_alias("latest", "second")
    with pytest.raises(ModelInUseError):
        store.delete("tiny")
    await incoming.put({"type": "lifespan.shutdown"})
    assert (await outgoing.get())["type"] == "lifespan.shutdown.complete"
    await lifespan
    store.delete("tiny")


# Responses


async def test_answer_is_forwarded_with_origin_of_its_model(
    open_client: Open, stub: StubServer, store: ModelStore
) -> None:
    answer = await ask(await open_client(stub.url), temperature=0.5, tools=[{"type": "function"}])
    assert answer.json()["choices"][0]["message"]["content"] == "one two "
    assert answer.json()["id"] == "theirs-1"
    assert answer.json()["system_fingerprint"] == store.get("tiny").fingerprint
    (asked,) = stub.asked
    expected = {"model": "tiny", "temperature": 0.5, "tools": [{"type": "function"}]}
    assert asked == {**CHAT, **expected}


async def test_forwarded_answer_has_headers_of_own_answer(
    open_client: Open, services: Services, stub: StubServer, store: ModelStore, tmp_path: Path
) -> None:
    folder = build_tiny_model(tmp_path / "traced")
    lineage = {"run_id": "ftjob-1", "checkpoint_step": 7, "data": {"sha256": "abc"}}
    (folder / "lineage.json").write_text(json.dumps(lineage))
    store.add(folder, "traced")
    stub.models = ["traced"]
    own = httpx.ASGITransport(build_http(replace(services, text=Echo(store)), None))
    async with httpx.AsyncClient(transport=own, base_url="http://127.0.0.1:8000") as client:
        expected = await ask(client, model="traced")
    for stream in (False, True):
        answer = await ask(await open_client(stub.url), model="traced", stream=stream)
        for name in ("x-model-id", "x-run-id", "x-checkpoint", "x-dataset-sha256"):
            assert answer.headers[name] == expected.headers[name]
    assert expected.headers["x-checkpoint"] == "step-7"


async def test_completions_are_forwarded(open_client: Open, stub: StubServer) -> None:
    body = {"model": "tiny", "prompt": "Hello", "echo": True}
    client = await open_client(stub.url)
    answer = await client.post("/v1/completions", json=body)
    assert answer.json()["choices"][0]["text"] == "one two "
    assert stub.asked == [body]


async def test_each_chunk_of_stream_names_its_model(
    open_client: Open, stub: StubServer, store: ModelStore
) -> None:
    answer = await ask(await open_client(stub.url), stream=True)
    *chunks, done = read_events(answer)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == stub.words
    assert {chunk["model"] for chunk in chunks} == {"tiny"}
    assert {chunk["system_fingerprint"] for chunk in chunks} == {store.get("tiny").fingerprint}
    assert answer.headers["x-model-id"] == "tiny"
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_stream_is_forwarded_without_buffering(store: ModelStore, stub: StubServer) -> None:
    stub.words, stub.delay_s = [str(number) for number in range(4)], 0.1
    async with open_proxy(store, stub.url) as upstream_proxy:
        _, chunks = await upstream_proxy.ask("/v1/chat/completions", {**CHAT, "stream": True})
        assert not isinstance(chunks, dict)
        times = [time.monotonic() async for _ in chunks]
    assert times[-1] - times[0] > 0.2


@pytest.mark.parametrize("text", ["a\u2028b", "a\u0085b", "a\x1cb", "a\u2029", "ü€😀"])
async def test_text_with_unicode_line_separators_is_forwarded(
    open_client: Open, stub: StubServer, text: str
) -> None:
    stub.words = [text, "."]
    *chunks, done = read_events(await ask(await open_client(stub.url), stream=True))
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == [text, "."]


async def test_upstream_connection_is_reused(open_client: Open, stub: StubServer) -> None:
    client = await open_client(stub.url)
    for number in range(6):
        assert (await ask(client, stream=number % 3 != 0)).status_code == 200
    assert len(stub.clients) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_unpaired_surrogate_is_replaced(
    open_client: Open, stub: StubServer, stream: bool
) -> None:
    stub.words = ["\ud83d", "\\ud83d", "\ud83d\ude00"]
    stub.are_ascii = True
    answer = await ask(await open_client(stub.url), stream=stream)
    expected = ["?", "\\ud83d", "😀"]
    if stream:
        *chunks, done = read_events(answer)
        assert done == "[DONE]"
        assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == expected
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "".join(expected)


async def test_body_beyond_limit_is_not_forwarded(open_client: Open, stub: StubServer) -> None:
    async def send() -> AsyncIterator[bytes]:
        for _ in range(MAX_TEXT_BYTES // 1_000_000 + 1):
            yield b" " * 1_000_000

    client = await open_client(stub.url)
    answer = await client.post("/v1/chat/completions", content=send())
    assert answer.status_code == 413
    assert stub.asked == []


# Failures


@pytest.mark.parametrize(
    ("refusal", "status", "message"),
    [
        (refuse(400, "temperature must be at most 2"), 400, "temperature must be at most 2"),
        (refuse(422, "no such thing"), 422, "no such thing"),
        (refuse_plainly(418, "teapot"), 418, "the server that has the model answered 418"),
        (refuse(429, "too many"), 429, "too many"),
        (refuse(408, "Request server side timeout"), 504, "Request server side timeout"),
        (refuse(401, "bad key secret"), 502, "refuses our key"),
        (refuse(403, "who are you secret"), 502, "refuses our key"),
        (refuse(500, "File secret.py"), 502, "the server that has the model failed"),
        (refuse(503, "replica secret.py"), 503, "is not available"),
        (refuse_plainly(200, "<html>"), 502, "no JSON object"),
        (refuse_plainly(200, "[1]"), 502, "no JSON object"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_upstream_errors_are_mapped_to_status_and_message(
    open_client: Open,
    stub: StubServer,
    refusal: Response,
    status: int,
    message: str,
    stream: bool,
) -> None:
    stub.refusal = refusal
    answer = await ask(await open_client(stub.url), stream=stream)
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert message in error["message"]
    assert "secret" not in answer.text
    assert set(error) == {"message", "type", "param", "code"}
    if status == 400:
        assert error["param"] == "temperature"


async def test_retry_after_header_is_forwarded(open_client: Open, stub: StubServer) -> None:
    stub.refusal = refuse(429, "too many", **{"retry-after": "7"})
    assert (await ask(await open_client(stub.url))).headers["retry-after"] == "7"


async def test_unreachable_upstream_gets_503_and_is_not_ready(open_client: Open) -> None:
    with serve_stub() as stub:
        stub.models = ["tiny"]
        client = await open_client(stub.url)
        assert (await ask(client)).status_code == 200
        assert (await client.get("/healthz")).status_code == 200
    never = await open_client(stub.url)
    for client_of_it in (client, never):
        answer = await ask(client_of_it)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_unavailable")
        assert "a server does not answer" in answer.json()["error"]["message"]
        assert (await client_of_it.get("/healthz")).status_code == 503


async def test_upstream_without_models_is_not_ready(open_client: Open, stub: StubServer) -> None:
    stub.models = []
    answer = await (await open_client(stub.url)).get("/healthz")
    assert (answer.status_code, answer.json()["checks"]["generator"]) == (503, "failed")


@pytest.mark.parametrize("stream", [False, True])
async def test_late_upstream_answer_gets_504_and_is_cancelled(
    open_client: Open, stub: StubServer, stream: bool
) -> None:
    stub.delay_s = 3.0
    answer = await ask(await open_client(stub.url, timeout_s=0.3), stream=stream)
    assert answer.status_code == 504
    assert "no complete answer within 0.3 s" in answer.json()["error"]["message"]
    await wait_until(lambda: stub.num_open == 0)


async def test_stream_beyond_deadline_ends_with_error(open_client: Open, stub: StubServer) -> None:
    stub.words, stub.delay_s = ["x"] * 20, 0.1
    answer = await ask(await open_client(stub.url, timeout_s=0.35), stream=True)
    *chunks, last = read_events(answer)
    assert len(chunks) in {2, 3}
    assert "no complete answer within 0.35 s" in last["error"]["message"]


async def test_slow_client_does_not_exhaust_deadline(store: ModelStore, stub: StubServer) -> None:
    stub.words = ["x"] * 5
    read = []
    timeout_s = 0.3
    async with open_proxy(store, stub.url, timeout_s=timeout_s) as upstream_proxy:
        deadline = time.monotonic() + timeout_s
        _, chunks = await upstream_proxy.ask("/v1/chat/completions", {**CHAT, "stream": True})
        assert not isinstance(chunks, dict)
        async for chunk in chunks:
            await wait_until(lambda: time.monotonic() > deadline)
            read.append(chunk)
    assert len(read) == 5


async def test_interrupted_upstream_stream_ends_with_error(
    open_client: Open, stub: StubServer
) -> None:
    stub.num_words_sent = 1
    chunk, error = read_events(await ask(await open_client(stub.url), stream=True))
    assert chunk["choices"][0]["delta"]["content"] == "one "
    assert "ended its answer too early" in error["error"]["message"]


async def test_disconnected_client_cancels_upstream_request(
    services: Services, store: ModelStore, stub: StubServer
) -> None:
    """Only a client on a real socket can disconnect."""
    stub.words, stub.delay_s = ["x"] * 1000, 0.05
    upstream_proxy = UpstreamProxy(store, [UpstreamSettings(url=stub.url)], timeout_s=60)
    app = build_http(replace(services, text=upstream_proxy), None)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await wait_until(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url) as client:
        body = {**CHAT, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("data:")
            assert stub.num_open == 1
    await wait_until(lambda: stub.num_open == 0)
    server.should_exit = True
    await serving


# The key


@pytest.mark.parametrize(
    ("url", "key_variable", "expected"),
    [
        ("http://127.0.0.1:8000/vllm/a", None, "ours"),
        ("http://localhost:9000", None, "ours"),
        ("http://[::1]:9000", None, "ours"),
        ("https://models.example", None, None),
        ("http://127.0.0.1.example", None, None),
        ("https://models.example", "THEIR_KEY", "theirs"),
        ("http://127.0.0.1:8000", "THEIR_KEY", "theirs"),
    ],
)
def test_own_key_is_sent_only_to_local_upstream(
    monkeypatch: pytest.MonkeyPatch, url: str, key_variable: str | None, expected: str | None
) -> None:
    monkeypatch.setenv("TUNESERVE_API_KEY", "ours")
    monkeypatch.setenv("THEIR_KEY", "theirs")
    settings = UpstreamSettings(url=url, key_variable=key_variable)
    assert find_upstream_key(settings) == expected


@pytest.mark.parametrize("url", ["http://us:er@host", "https://key@host/v", "http://h/a@b", "x"])
def test_upstream_url_with_credentials_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="^1 validation error for UpstreamSettings\nurl\n"):
        UpstreamSettings.model_validate(url)


def test_missing_key_variable_error_names_variable() -> None:
    settings = UpstreamSettings(url="https://models.example", key_variable="THEIR_KEY")
    with pytest.raises(ValueError, match=r"^the environment variable 'THEIR_KEY' is not set"):
        find_upstream_key(settings)


async def test_upstream_receives_configured_key_and_not_key_of_client(
    open_client: Open, stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNESERVE_API_KEY", "theirs")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # requests through it would fail
    client = await open_client(stub.url)
    answer = await client.post(
        "/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer of-the-client"}
    )
    assert answer.status_code == 200
    assert set(stub.keys) == {"Bearer theirs"}
