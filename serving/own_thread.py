"""Computing beside the event loop without slowing down what computes all the time."""

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

_NICENESS = 10
_P = ParamSpec("_P")
_T = TypeVar("_T")


async def run_in_own_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a function on a thread that ends with it, and return what it returns.

    For all that computes with torch. OpenMP (libgomp) keeps a team of workers for each thread that
    ever computed, and `asyncio.to_thread` keeps its threads. Once there are more workers than
    cores, libgomp has all of them sleep between two operators, where they would wait awake for the
    next: with two threads on two cores that took a third of the tokens per second.
    """
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=function.__name__)
    try:
        work = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)


def put_thread_last() -> None:
    """Have this thread, and those that it starts, go after all others; it cannot be undone.

    Only on Linux, where niceness is a thread's and not a process's.
    """
    if sys.platform == "linux":
        niceness = os.getpriority(os.PRIO_PROCESS, 0)  # Ray's own for workers is 15
        os.setpriority(os.PRIO_PROCESS, 0, max(niceness, _NICENESS))
