"""The page's API client against a small real server."""

import asyncio
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import TypeVar

import pytest

from apps.client.client import ApiClient, ApiError
from apps.client.resources import Piece
from tests.apps.ui.conftest import StubApi

Result = TypeVar("Result")


def ask(
    url: str, call: Callable[[ApiClient], Awaitable[Result]], api_key: str | None = None
) -> Result:
    async def run() -> Result:
        client = ApiClient(url, lambda: api_key)
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def read_answer(client: ApiClient, question: str) -> list[Piece]:
    messages = [{"role": "user", "content": question}]
    return [piece async for piece in client.stream_chat("latest", messages, 0.5, 20)]


def test_lists_are_typed_and_unknown_keys_ignored(api: StubApi) -> None:
    tuned, base = ask(api.url, lambda client: client.list_models())
    assert (tuned.id, tuned.aliases, base.base, base.demonstration) == (
        "base-tuned",
        ("latest",),
        True,
        True,
    )


def test_the_key_is_sent_only_if_there_is_one(api: StubApi) -> None:
    ask(api.url, lambda client: client.list_files())
    ask(api.url, lambda client: client.list_files(), "secret")
    assert api.keys == [None, "Bearer secret"]


def test_an_upload_keeps_its_name(api: StubApi) -> None:
    file = ask(api.url, lambda client: client.upload_file("rows.jsonl", BytesIO(b"{}")))
    assert file.filename == "rows.jsonl"


def test_an_error_carries_the_message_of_the_api(api: StubApi) -> None:
    with pytest.raises(ApiError, match="learning_rate is 0: it should be") as caught:
        ask(
            api.url,
            lambda client: client.create_job("base", "file-handbook", None, {"learning_rate": 0}),
        )
    assert caught.value.status == 400


def test_an_unknown_run_is_an_error_with_a_capital(api: StubApi) -> None:
    with pytest.raises(ApiError, match=r"^There is no job 'nope'$"):
        ask(api.url, lambda client: client.get_job("nope"))


def test_nothing_is_sent_for_an_empty_name(api: StubApi) -> None:
    ask(api.url, lambda client: client.create_job("base", "file-handbook", ""))
    assert api.bodies == [{"model": "base", "training_file": "file-handbook", "training": {}}]


def test_a_server_that_is_not_there_is_said_in_words() -> None:
    with pytest.raises(ApiError, match="does not answer; it may still be starting"):
        ask("http://127.0.0.1:9", lambda client: client.list_models())


def test_an_answer_comes_in_pieces_and_names_its_model(api: StubApi) -> None:
    pieces = ask(api.url, lambda client: read_answer(client, "hello"))
    assert "".join(piece.text for piece in pieces).startswith("Hello there ")
    assert {piece.model for piece in pieces} == {"base-tuned"}
    assert pieces[-1].num_tokens == 3
    assert api.bodies[-1]["temperature"] == 0.5
    assert api.bodies[-1]["max_tokens"] == 20


def test_an_overloaded_server_is_said_kindly(api: StubApi) -> None:
    with pytest.raises(ApiError, match="All places are taken. Please try again in a moment"):
        ask(api.url, lambda client: read_answer(client, "busy"))


def test_an_error_in_the_middle_of_an_answer_is_raised(api: StubApi) -> None:
    with pytest.raises(ApiError, match="the model was unloaded"):
        ask(api.url, lambda client: read_answer(client, "break"))


def test_something_else_than_the_api_is_said_in_words(api: StubApi) -> None:
    with pytest.raises(ApiError, match="The API answered with status 404"):
        ask(f"{api.url}/elsewhere", lambda client: client.list_models())
