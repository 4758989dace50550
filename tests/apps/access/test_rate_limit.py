"""Limits of requests and tokens per minute of a key."""

import asyncio
import math
import time
from contextlib import suppress
from typing import Any

import openai
import pytest

from apps.access.gate import Principal
from apps.access.keys import KeyStore
from apps.access.rate_limit import RateLimiter, show_duration
from apps.access.roles import Role
from apps.errors import ApiError
from apps.http_api.dependencies import Services
from tests.apps.access.conftest import Connect

pytestmark = pytest.mark.anyio

CHAT = {"model": "latest", "messages": [{"role": "user", "content": "one two"}]}
NUM_TOKENS = 5  # of the prompt and the answer, as the fake generator counts them


async def test_request_beyond_rate_limit_gets_429(keys: KeyStore, connect: Connect) -> None:
    limited = keys.create("ann", Role.READ, requests_per_minute=2).text
    free = keys.create("bob", Role.READ).text
    async with connect(limited) as client:
        first = await client.get("/v1/models")
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert (await client.get("/v1/unknown")).status_code == 404
        refused = await client.get("/v1/models")
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert "2 requests per minute" in error["message"]
        other = await client.get("/v1/models", headers={"authorization": f"Bearer {free}"})
        assert other.status_code == 200
        assert "x-ratelimit-limit-requests" not in other.headers


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_token_usage_counts_prompt_and_completion_tokens(
    path: str, is_streamed: bool, keys: KeyStore, connect: Connect
) -> None:
    asked = CHAT if path.startswith("chat") else {"model": "latest", "prompt": "one two"}
    body = {**asked, "stream": is_streamed}
    started = time.monotonic()
    async with connect(keys.create("ann", Role.CHAT, tokens_per_minute=60).text) as client:
        for _ in range(2):
            assert (await client.post(f"/v1/{path}", json=body)).status_code == 200
        models = await client.get("/v1/models")
    num_used = 60 - int(models.headers["x-ratelimit-remaining-tokens"])
    num_refilled = math.ceil(time.monotonic() - started)  # one per second
    assert 2 * NUM_TOKENS - num_refilled <= num_used <= 2 * NUM_TOKENS


async def test_negative_token_balance_refuses_next_generation_request(
    keys: KeyStore, connect: Connect
) -> None:
    key = keys.create("ann", Role.CHAT, tokens_per_minute=NUM_TOKENS - 2).text
    async with connect(key) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        refused = await client.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 20
        assert (await client.get("/v1/models")).status_code == 200, (
            "a request that generates no tokens is refused"
        )


async def test_refused_generation_request_uses_no_tokens(keys: KeyStore, connect: Connect) -> None:
    key = keys.create("ann", Role.CHAT, tokens_per_minute=1000).text
    async with connect(key) as client:
        for _ in range(3):
            answer = await client.post("/v1/chat/completions", json={**CHAT, "model": "nobody"})
            assert answer.status_code == 404
        models = await client.get("/v1/models")
    assert models.headers["x-ratelimit-remaining-tokens"] == "1000"


@pytest.mark.parametrize("names_length", [True, False])
async def test_disconnected_stream_uses_tokens_of_sent_text(
    keys: KeyStore, services: Services, connect: Connect, names_length: bool
) -> None:
    key = keys.create("ann", Role.CHAT, tokens_per_minute=1000).text
    async with connect(key) as client:
        await disconnect_from_stream(
            client.app,
            key,
            b'{"model": "latest", "stream": true, "messages": '
            b'[{"role": "user", "content": "' + b"word " * 400 + b'"}]}',
            names_length=names_length,
        )
        models = await client.get("/v1/models")
    assert int(models.headers["x-ratelimit-remaining-tokens"]) < 1000 - 400


@pytest.mark.parametrize("error", [ApiError(504, "too slow"), asyncio.CancelledError()])
async def test_timed_out_or_cancelled_request_uses_prompt_tokens(
    keys: KeyStore,
    services: Services,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    """The answer was computed; a client that disconnects before it cancels the request."""

    async def answer(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(services.text, "answer", answer)
    body = {"model": "latest", "messages": [{"role": "user", "content": "word " * 400}]}
    key = keys.create("ann", Role.CHAT, tokens_per_minute=1000).text
    async with connect(key) as client:
        with suppress(asyncio.CancelledError):
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 504
        models = await client.get("/v1/models")
    assert int(models.headers["x-ratelimit-remaining-tokens"]) < 1000 - 400


async def disconnect_from_stream(app: Any, key: str, body: bytes, *, names_length: bool) -> None:
    """Request a stream and disconnect after its beginning; without a length the body is chunked."""
    length = [(b"content-length", str(len(body)).encode())] if names_length else []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "query_string": b"",
        "root_path": "", "scheme": "http", "client": ("10.0.0.9", 1), "server": ("x", 80),
        "headers": [(b"authorization", f"Bearer {key}".encode()), (b"host", b"x"),
                    *length, (b"content-type", b"application/json")],
    }  # fmt: skip
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            raise OSError("the client has gone")

    with pytest.raises(BaseException):  # noqa: B017, PT011 - the framework chooses the exception
        await app(scope, receive, send)


async def test_openai_client_raises_rate_limit_error(keys: KeyStore, connect: Connect) -> None:
    key = keys.create("ann", Role.CHAT, requests_per_minute=1).text
    async with connect(key) as http:
        client = openai.AsyncOpenAI(
            base_url="http://tuneserve.example/v1",
            api_key=key,
            http_client=http,  # type: ignore[arg-type] # it also takes httpx's
            max_retries=0,
        )
        await client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
        with pytest.raises(
            openai.RateLimitError,
            match=r"^Error code: 429 - the rate limit .*: 1 requests per minute",
        ):
            await client.models.list()


def test_rate_limit_refills_evenly_and_follows_changed_key() -> None:
    now = 0.0
    limiter = RateLimiter(lambda: now)
    buckets = limiter.find(Principal("ann", Role.CHAT, "id", requests_per_minute=60))
    assert buckets is not None
    for _ in range(60):
        assert buckets.admit(0) is None
    refusal = buckets.admit(0)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(1.0)
    now = 2.0
    assert [buckets.admit(0) is None for _ in range(3)] == [True, True, False]
    changed = limiter.find(Principal("ann", Role.CHAT, "id", requests_per_minute=5))
    assert changed is not None
    assert changed.describe()["x-ratelimit-limit-requests"] == "5"
    assert limiter.find(Principal("local", Role.ADMIN)) is None


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0ms"), (0.25, "250ms"), (4.2, "5s"), (72, "1m12s")]
)
def test_durations_have_openai_format(seconds: float, shown: str) -> None:
    assert show_duration(seconds) == shown
