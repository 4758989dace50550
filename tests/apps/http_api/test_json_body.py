"""JSON bodies that are expensive by design, and bodies that are not JSON."""

import asyncio
import json
import threading
import time
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion

from apps.http_api import json_body
from apps.http_api.routes import text
from apps.middleware.body_limit import MAX_JSON_BYTES, MAX_TEXT_BYTES

pytestmark = pytest.mark.anyio

CHATS, TEXTS, JOBS = "/v1/chat/completions", "/v1/completions", "/v1/fine_tuning/jobs"
JSON = {"content-type": "application/json"}
MAX_S = 10.0
MAX_ANSWER_BYTES = 4_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def post(client: httpx.AsyncClient, path: str, content: bytes) -> tuple[int, dict[str, Any]]:
    """Send an unmodified body; check that the error is small and in OpenAI's format."""
    answer = await client.post(path, content=content, headers=JSON)
    assert len(answer.content) < MAX_ANSWER_BYTES
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status_code, error


def repeat(item: bytes, num: int) -> bytes:
    return b"[" + b",".join([item] * num) + b"]"


def with_keys(num: int) -> bytes:
    keys = b",".join(b'"%06x":1' % number for number in range(num))
    return b'{"model":"tiny","training_file":"f","messages":[],' + keys + b"}"


EXPENSIVE = [
    (CHATS, b'{"model":"m","messages":' + repeat(b"{}", 2_600_000) + b"}", "too many values"),
    (
        CHATS,
        b'{"model":"m","messages":' + repeat(b"{}", 500_000) + b"}",
        "'messages': expected at most 512 messages, got 500000",
    ),
    (TEXTS, b'{"model":"m","prompt":"x","stop":' + repeat(b"1", 3_900_000) + b"}", "too many"),
    (
        TEXTS,
        b'{"model":"m","prompt":"x","stop":' + repeat(b"1", 900_000) + b"}",
        "'stop': expected at most 4 stop sequences, got 900000",
    ),
    (JOBS, with_keys(700_000), "expected at most 250,000"),
    (JOBS, with_keys(20_000), "expected at most 256 parameters, got 20003"),
    (CHATS, with_keys(500_000), "expected at most 256 parameters, got 500003"),
    (
        TEXTS,
        b'{"model":"m","prompt":' + repeat(b'{"a":1}', 400_000) + b"}",
        "expected at most 128 prompts, got 400000",
    ),
    (
        CHATS,
        b'{"model":"m","messages":[{"role":"user","content":' + repeat(b"1", 900_000) + b"}]}",
        "expected at most 1024 text parts, got 900000",
    ),
    (
        CHATS,
        b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 7_900_000 + b'"}]}',
        "expected at most 1000000 characters, got 7900000",
    ),
    (CHATS, b'{"model":"' + b"x" * 7_900_000 + b'"}', "expected at most 128 characters"),
    (JOBS, with_keys(200), "'messages', '000000', '000001' and 198 more are not known parameters"),
    (CHATS, b'{"tools":' + repeat(b"{}", 500_000) + b"}", "'tools' is not supported yet"),
    (CHATS, b'{"model":"m","logit_bias":' + with_keys(300_000) + b"}", "is not supported yet"),
    (
        CHATS,
        b'{"model":"m","messages":[{"role":"user"}],"metadata":' + with_keys(9) + b"}",
        "'messages[0].content' is required",
    ),
    (
        JOBS,
        b'{"model":"m","training_file":"f","metadata":' + with_keys(10_000) + b"}",
        "'metadata': expected at most 16 entries, got 10003",
    ),
    (
        JOBS,
        b'{"model":"m","training_file":"f","training":' + with_keys(10_000) + b"}",
        "'training': expected at most 64 settings, got 10003",
    ),
    (CHATS, b"[" * 4_000_000, "too many values"),
    (CHATS, b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", "expected at most 32 levels"),
    (CHATS, b'{"a":' * 40 + b"1" + b"}" * 40, "expected at most 32 levels"),
    (JOBS, b'{"seed":' + b"9" * 5_000 + b"}", "an integer of more than 4300 digits"),
    (CHATS, b'{"n":' + b"9" * 4_000 + b"}", "'model' is required"),
]


@pytest.mark.parametrize(
    ("path", "body", "message"), EXPENSIVE, ids=[str(n) for n in range(len(EXPENSIVE))]
)
async def test_expensive_body_is_refused_quickly_with_short_error(
    client: httpx.AsyncClient, path: str, body: bytes, message: str
) -> None:
    assert len(body) <= MAX_TEXT_BYTES
    begin = time.monotonic()
    status, error = await post(client, path, body)
    assert time.monotonic() - begin < MAX_S
    assert status == (413 if path == JOBS and len(body) > MAX_JSON_BYTES else 400)
    assert message in error["message"]


@pytest.mark.parametrize("step", ["parse", "validate"])
async def test_large_valid_body_does_not_block_other_requests(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    may_end = threading.Event()
    target, name = {
        "parse": (json_body, "parse_json_object"),
        "validate": (text, "parse_completion_request"),
    }[step]
    original = getattr(target, name)

    def wait_first(*arguments: Any) -> Any:
        assert may_end.wait(MAX_S), "other requests were blocked"
        return original(*arguments)

    monkeypatch.setattr(target, name, wait_first)
    # The largest possible body; the tests' `Echo` generator cannot answer token ids.
    body = b'{"model":"nobody","prompt":' + repeat(b"12345", 1_000_000) + b"}"
    asked = asyncio.create_task(client.post(TEXTS, content=body, headers=JSON))
    for _ in range(5):
        assert (await client.get("/healthz")).status_code == 200
    assert not asked.done()
    may_end.set()
    assert (await asked).status_code == 404


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is empty; expected a JSON object"),
        (b"{", "the body is not JSON: Expecting property name"),
        (b"[]", "the body is an array; expected a JSON object"),
        (b'"x"', "the body is a string; expected a JSON object"),
        (b"null", "the body is null; expected a JSON object"),
        (b'{"model":"\xff"}', "the body is not UTF-8"),
        ('{"model":"m"}'.encode("utf-16"), "the body is not UTF-8"),
        (b'{"temperature":NaN}', "the number NaN, which JSON does not have"),
        (b'{"temperature":-Infinity}', "the number -Infinity"),
        (b'{"a":"\\\\","b":"\\"["}', "'a', 'b' are not known parameters"),
    ],
)
async def test_invalid_json_body_error_names_reason(
    client: httpx.AsyncClient, body: bytes, message: str
) -> None:
    status, error = await post(client, CHATS, body)
    assert status == 400
    assert message in error["message"]


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}])
async def test_body_with_other_content_type_gets_415(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    for path in (CHATS, JOBS):
        answer = await client.post(path, content=b'{"model":"m"}', headers=headers)
        assert answer.status_code == 415
        assert answer.json()["error"]["param"] == "content-type"
        assert "expected application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXTS, rb'{"model":"tiny","prompt":"a\ud800"}', "prompt"),
        (CHATS, rb'{"model":"tiny","messages":[{"role":"user","content":"\udfff"}]}', "content"),
        (JOBS, rb'{"model":"tiny","training_file":"f","metadata":{"\ud800":"x"}}', "metadata"),
        ("/v1/aliases/a", rb'{"model":"\ud800"}', "model"),
    ],
)
async def test_unpaired_surrogate_is_refused(
    client: httpx.AsyncClient, path: str, body: bytes, param: str
) -> None:
    method = "PUT" if "aliases" in path else "POST"
    answer = await client.request(method, path, content=body, headers=JSON)
    assert answer.status_code == 400
    assert param in answer.json()["error"]["param"]
    assert "half of a surrogate pair" in answer.json()["error"]["message"]


async def test_escaped_characters_are_decoded(client: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "prompt": "\N{CROISSANT} \\ud800"}
    answer = await client.post(TEXTS, content=json.dumps(body).encode(), headers=JSON)
    assert answer.json()["choices"][0]["text"] == "\N{CROISSANT} \\ud800 "


async def test_response_message_is_accepted_as_request_message(client: httpx.AsyncClient) -> None:
    ask = {"role": "user", "content": "one two"}
    answer = await client.post(CHATS, json={"model": "tiny", "messages": [ask]})
    message = ChatCompletion.model_validate(answer.json()).choices[0].message
    dumped = message.model_dump()
    empty: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [],
        "annotations": [],
    }
    for earlier in (dumped, {**dumped, **empty}, {**empty, "new": None}):
        messages = [ask, earlier, ask]
        answer = await client.post(CHATS, json={"model": "tiny", "messages": messages})
        assert answer.status_code == 200, answer.text
    wrongs: list[dict[str, Any]] = [
        {**empty, "role": "user"},
        {**empty, "tool_calls": [{}]},
        {**empty, "new": 1},
    ]
    for wrong in wrongs:
        answer = await client.post(CHATS, json={"model": "tiny", "messages": [ask, wrong]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("messages[1].")
