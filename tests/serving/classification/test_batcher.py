"""Batches of the inputs of concurrent requests."""

import asyncio
from collections.abc import Sequence

import pytest

from serving.classification.batcher import Batcher

pytestmark = pytest.mark.anyio


def choose_first(numbers: Sequence[int]) -> list[int]:
    """Choose the first two numbers of the same parity."""
    return [i for i, number in enumerate(numbers) if (number - numbers[0]) % 2 == 0][:2]


class Squares:
    """Computes squares, each batch once it is allowed to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.allowed = asyncio.Semaphore(0)

    async def compute(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        await self.allowed.acquire()
        if 13 in numbers:
            raise ValueError("13 brings bad luck")
        return [number * number for number in numbers]


async def test_inputs_that_come_during_a_batch_make_the_next_one() -> None:
    squares = Squares()
    batcher = Batcher(choose_first, squares.compute, max_waiting=3)
    first = asyncio.create_task(batcher.run([1]))
    while not squares.batches:
        await asyncio.sleep(0)
    others = [asyncio.create_task(batcher.run([number, number + 10])) for number in (2, 5, 4)]
    await asyncio.sleep(0)
    for _ in range(4):
        squares.allowed.release()
    assert await first == [1]
    assert await asyncio.gather(*others) == [[4, 144], [25, 225], [16, 196]]
    assert squares.batches == [[1], [2, 12], [5, 15], [4, 14]]
    squares.allowed.release()
    assert await batcher.run([5]) == [25]
    assert await batcher.run([]) == []


async def test_failed_batch_fails_its_calls_only() -> None:
    squares = Squares()
    batcher = Batcher(lambda _: [0], squares.compute, max_waiting=1)
    calls = [asyncio.create_task(batcher.run([number])) for number in (13, 3)]
    squares.allowed.release()
    squares.allowed.release()
    with pytest.raises(ValueError, match="^13 brings bad luck$"):
        await calls[0]
    assert await calls[1] == [9]


async def test_cancelled_call_takes_its_inputs_back() -> None:
    squares = Squares()
    batcher = Batcher(choose_first, squares.compute, max_waiting=8)
    first = asyncio.create_task(batcher.run([1]))
    while not squares.batches:
        await asyncio.sleep(0)
    dropped = asyncio.create_task(batcher.run([2]))
    kept = asyncio.create_task(batcher.run([3]))
    await asyncio.sleep(0)
    dropped.cancel()
    squares.allowed.release()
    squares.allowed.release()
    assert await first == [1]
    assert await kept == [9]
    assert squares.batches == [[1], [3]]
    with pytest.raises(asyncio.CancelledError):
        await dropped
