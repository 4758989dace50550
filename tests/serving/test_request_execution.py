"""Requests for several answers, refused prompts, and cancelled requests."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from serving.errors import InvalidRequestError
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.serving.conftest import make_chat, make_request, run_replica, wait_until

pytestmark = pytest.mark.anyio


async def test_whole_answers_have_choice_indexes(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    body = {"model": "a", "prompt": ["one fox", "two"], "n": 2, "max_tokens": 5, "echo": True}
    async with run_replica(layout) as replica:
        choices = (await replica.answer(make_request(body))).choices
        assert [choice.choice_index for choice in choices] == [0, 1, 2, 3]
        assert all(choice.text.startswith("one fox") for choice in choices[:2])
        assert all(choice.text.startswith("two") for choice in choices[2:])
        with pytest.raises(InvalidRequestError, match="^96 answers are wanted at once, "):
            await replica.answer(make_request({**body, "prompt": ["a"] * 6, "n": 16}))


async def test_streamed_answers_have_choice_indexes(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    async with run_replica(layout) as replica:
        request = make_chat("a", n=3, max_tokens=5)
        items = [item async for item in replica.stream(request)]
        pieces = [piece for some, _ in items for piece in some]
        ends = [piece for piece in pieces if piece.finish_reason]
        assert sorted(piece.choice_index for piece in ends) == [0, 1, 2]
        whole = await replica.answer(request)
        texts = [
            "".join(one.text for one in pieces if one.choice_index == index) for index in range(3)
        ]
        assert texts == [choice.text for choice in whole.choices]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1] * 200, "^the prompt has 200 tokens, but the model's context holds 128, "),
        ([10**6], "^the prompt has the token id 1000000, "),
        (
            "a" * 128 * 129,
            "^the prompt has 16512 characters, but the model's context of 128 tokens ",
        ),
    ],
    ids=["too many tokens", "unknown token", "too many characters"],
)
async def test_invalid_prompt_error_names_parameter(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, prompt: Any, message: str
) -> None:
    store.add(tiny_model, "a")
    async with run_replica(layout) as replica:
        with pytest.raises(InvalidRequestError, match=message) as caught:
            await replica.answer(make_request({"model": "a", "prompt": prompt}))
        assert caught.value.param == "prompt"


async def test_closed_stream_frees_its_capacity(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    async with run_replica(layout) as replica:
        async with aclosing(replica.stream(make_chat("a", max_tokens=100))) as items:
            await anext(items)
            assert (await replica.loaded_models())[0].num_active == 1
        assert (await replica.loaded_models())[0].num_active == 0


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_cancelled_request_ends_all_its_answers(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, *, is_streamed: bool
) -> None:
    store.add(tiny_model, "a")
    request = make_chat("a", n=4, max_tokens=100)
    async with run_replica(layout) as replica:

        async def read_stream() -> None:
            async with aclosing(replica.stream(request)) as items:
                async for _ in items:
                    pass

        async def is_active(num_active: int) -> bool:
            loaded = await replica.loaded_models()
            return bool(loaded) and loaded[0].num_active == num_active

        answering = read_stream() if is_streamed else replica.answer(request)
        task = asyncio.ensure_future(answering)
        await wait_until(lambda: is_active(4))
        task.cancel()
        await asyncio.wait([task])
        assert await is_active(0)
