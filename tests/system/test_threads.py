"""Threads for long work."""

import asyncio
import threading

import pytest
import torch

from system.threads import DedicatedThread, run_in_new_thread

pytestmark = pytest.mark.anyio


async def test_a_result_is_returned_and_the_thread_ends() -> None:
    def add(first: int, second: int) -> tuple[int, threading.Thread]:
        return int(torch.tensor(first) + second), threading.current_thread()

    total, thread = await run_in_new_thread(add, 1, second=2)
    assert total == 3
    assert thread is not threading.current_thread()
    thread.join(timeout=10)
    assert not thread.is_alive()


async def test_an_error_is_raised_to_the_caller() -> None:
    def fail() -> None:
        raise ValueError("invalid row")

    with pytest.raises(ValueError, match=r"^invalid row$"):
        await run_in_new_thread(fail)


async def test_a_dedicated_thread_runs_calls_in_order() -> None:
    thread = DedicatedThread("order")
    may_continue = threading.Event()
    order = []

    def work(number: int) -> int:
        if number == 0:
            may_continue.wait()
        order.append(number)
        return threading.get_native_id()

    calls = [asyncio.create_task(thread.run(work, number)) for number in range(3)]
    assert await asyncio.to_thread(len, order) == 0  # the shared threads are free
    may_continue.set()
    assert len(set(await asyncio.gather(*calls))) == 1
    assert order == [0, 1, 2]


async def test_a_queued_call_whose_caller_is_cancelled_never_runs() -> None:
    thread = DedicatedThread("cancel")
    has_begun, may_continue = threading.Event(), threading.Event()
    ran: list[str] = []

    def occupy() -> None:
        has_begun.set()
        may_continue.wait()

    first = asyncio.create_task(thread.run(occupy))
    await asyncio.to_thread(has_begun.wait)
    cancelled = asyncio.create_task(thread.run(ran.append, "cancelled"))
    await asyncio.sleep(0)  # the call is queued
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    may_continue.set()
    await first
    await thread.run(ran.append, "last")
    assert ran == ["last"]
