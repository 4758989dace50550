"""Rejections by the generator's deployment cross its Serve handle as values."""

import asyncio
import pickle
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from serving.errors import InvalidRequestError, OverloadedError, ServingError
from serving.generator import GeneratorDeployment, GeneratorReplica
from serving.refusals import Refusal, return_refusals, take, yield_refusals


def test_an_expected_exception_is_returned_and_a_bug_is_raised() -> None:
    @return_refusals(ServingError)
    async def fail(failure: Exception | None) -> int:
        if failure is not None:
            raise failure
        return 1

    assert asyncio.run(fail(None)) == 1
    refused = asyncio.run(fail(InvalidRequestError("too long", param="messages")))
    with pytest.raises(InvalidRequestError, match="too long") as caught:
        take(pickle.loads(pickle.dumps(refused)))
    assert caught.value.param == "messages"
    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(fail(ValueError("a bug")))


def test_a_stream_ends_with_what_was_refused() -> None:
    async def items() -> AsyncGenerator[int, None]:
        yield 1
        raise OverloadedError("full", retry_after_s=7)

    async def collect() -> list[Any]:
        return [item async for item in yield_refusals(items(), ServingError)]

    first, last = asyncio.run(collect())
    assert first == 1
    assert isinstance(last, Refusal)
    assert isinstance(last.error, OverloadedError)
    assert last.error.retry_after_s == 7


def test_the_deployment_raises_nothing_for_a_request_that_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: Any) -> None:
        raise InvalidRequestError("the template refuses these messages", param="messages")

    async def refuse_stream(*_: Any) -> AsyncGenerator[Any, None]:
        raise InvalidRequestError("the template refuses these messages", param="messages")
        yield

    monkeypatch.setattr(GeneratorReplica, "answer", refuse)
    monkeypatch.setattr(GeneratorReplica, "stream", refuse_stream)
    replica = GeneratorDeployment.__new__(GeneratorDeployment)

    async def ask() -> list[Any]:
        streamed = [item async for item in replica.stream("chat", {}, "id")]
        return [await replica.answer("chat", {}, "id"), *streamed]

    whole, streamed = asyncio.run(ask())
    assert isinstance(whole, Refusal)
    assert isinstance(streamed, Refusal)
