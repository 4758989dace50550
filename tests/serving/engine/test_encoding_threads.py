"""Long texts are encoded one at a time, short ones concurrently with them."""

import asyncio
import threading

import pytest

from serving.engine.encoding_threads import LONG_CHARACTERS, run_encoding

TIMEOUT_S = 30.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_long_texts_are_encoded_one_at_a_time_and_do_not_delay_short_texts() -> None:
    may_end = threading.Event()
    started: list[int] = []

    def encode(number: int) -> int:
        started.append(number)
        assert may_end.wait(TIMEOUT_S)
        return number

    long = [
        asyncio.create_task(run_encoding(LONG_CHARACTERS + 1, encode, number))
        for number in range(50)
    ]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            short = await asyncio.gather(
                *(run_encoding(LONG_CHARACTERS, lambda n: n, number) for number in range(10))
            )
        assert short == list(range(10))
        assert started == [0]
    finally:
        may_end.set()
    assert await asyncio.gather(*long) == list(range(50))
    assert started == list(range(50))
