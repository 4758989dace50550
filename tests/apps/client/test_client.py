"""The API client against a small real server."""

import asyncio
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import TypeVar

import pytest

from apps.client.client import ApiClient
from apps.client.errors import AnswerFailedError, RequestRefusedError
from apps.client.jobs import JobRequest
from apps.client.resources import Piece
from apps.client.text import Message, Sampling
from tests.apps.stub_api import StubApi

Result = TypeVar("Result")
JOB: JobRequest = {"model": "base", "training_file": "file-handbook", "training": {}}


def ask(
    url: str, call: Callable[[ApiClient], Awaitable[Result]], api_key: str | None = None
) -> Result:
    async def run() -> Result:
        async with ApiClient(url, lambda: api_key) as client:
            return await call(client)

    return asyncio.run(run())


async def read_answer(client: ApiClient, question: str) -> list[Piece]:
    stream = client.text.stream_chat(
        "latest", [{"role": "user", "content": question}], Sampling(0.5, 20), wants_usage=True
    )
    return [piece async for piece in stream]


def test_list_response_is_typed_and_unknown_keys_are_ignored(api: StubApi) -> None:
    tuned, base, _ = ask(api.url, lambda client: client.models.list_all())
    assert (tuned.id, tuned.aliases, base.base, base.demonstration) == (
        "base-tuned",
        ("latest",),
        True,
        True,
    )


def test_authorization_header_is_sent_only_with_key(api: StubApi) -> None:
    ask(api.url, lambda client: client.files.list_all())
    ask(api.url, lambda client: client.files.list_all(), "secret")
    assert api.keys == [None, "Bearer secret"]


def test_upload_sends_filename(api: StubApi) -> None:
    file = ask(api.url, lambda client: client.files.upload("rows.jsonl", BytesIO(b"{}")))
    assert file.filename == "rows.jsonl"


def test_refused_request_raises_with_api_message(api: StubApi) -> None:
    with pytest.raises(RequestRefusedError, match=r"^learning_rate is 0: it should be") as caught:
        ask(
            api.url,
            lambda client: client.jobs.create({**JOB, "training": {"learning_rate": 0}}),
        )
    assert (caught.value.status, caught.value.param) == (400, "learning_rate")


def test_estimate_is_typed_and_creates_no_job(api: StubApi) -> None:
    found = ask(api.url, lambda client: client.jobs.estimate({**JOB, "suffix": None}))
    assert (found.num_steps, found.memory.worker_bytes) == (120, 880_000_000)
    assert api.estimates == [JOB]
    assert api.bodies == []


def test_none_values_of_job_request_are_not_sent(api: StubApi) -> None:
    ask(api.url, lambda client: client.jobs.create({**JOB, "suffix": None}))
    assert api.bodies == [JOB]


def test_answer_is_streamed_with_model_id(api: StubApi) -> None:
    pieces = ask(api.url, lambda client: read_answer(client, "hello"))
    assert "".join(piece.text for piece in pieces).startswith("Hello there ")
    assert {piece.model for piece in pieces} == {"base-tuned"}
    assert pieces[-1].num_tokens == 3
    assert api.bodies[-1]["temperature"] == 0.5
    assert api.bodies[-1]["max_tokens"] == 20
    assert api.bodies[-1]["stream_options"] == {"include_usage": True}


def test_unset_sampling_parameters_are_not_sent(api: StubApi) -> None:
    async def read(client: ApiClient) -> list[Piece]:
        return [piece async for piece in client.text.stream_chat("latest", [_ask("hello")])]

    ask(api.url, read)
    assert api.bodies[-1].keys() == {"model", "messages", "stream"}


def test_error_event_in_stream_raises(api: StubApi) -> None:
    with pytest.raises(AnswerFailedError, match=r"^the model was unloaded$"):
        ask(api.url, lambda client: read_answer(client, "break"))


def _ask(question: str) -> Message:
    return {"role": "user", "content": question}
