"""Work on a thread that ends with the work."""

import os
import sys
import threading

import pytest
import torch

from system.threads import put_thread_last, run_in_own_thread

pytestmark = pytest.mark.anyio


async def test_what_was_computed_comes_back_and_the_thread_is_gone() -> None:
    def add(first: int, second: int) -> tuple[int, threading.Thread]:
        return int(torch.tensor(first) + second), threading.current_thread()

    total, thread = await run_in_own_thread(add, 1, second=2)
    assert total == 3
    assert thread is not threading.current_thread()
    thread.join(timeout=10)
    assert not thread.is_alive()


async def test_so_does_an_error() -> None:
    def fail() -> None:
        raise ValueError("as told")

    with pytest.raises(ValueError, match="as told"):
        await run_in_own_thread(fail)


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is a process's there")
async def test_a_thread_that_yields_takes_no_other_with_it() -> None:
    def read_niceness(yields: bool) -> int:
        if yields:
            put_thread_last()
        return os.getpriority(os.PRIO_PROCESS, 0)

    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert await run_in_own_thread(read_niceness, True) == max(before, 10)
    assert await run_in_own_thread(read_niceness, False) == before


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is a process's there")
async def test_one_that_is_last_already_stays_there() -> None:
    def read_niceness() -> int:
        os.setpriority(os.PRIO_PROCESS, 0, 15)
        put_thread_last()
        return os.getpriority(os.PRIO_PROCESS, 0)

    assert await run_in_own_thread(read_niceness) == 15
