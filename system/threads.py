"""Threads for long work outside the event loop; the CPU priority of threads and processes."""

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

_THREAD_NICENESS = 10
_PROCESS_NICENESS = 15
_P = ParamSpec("_P")
_T = TypeVar("_T")


async def run_in_new_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a function in a new thread that ends with it, and return its result.

    Use it for functions that change their thread, such as by `lower_thread_priority`:
    `asyncio.to_thread` reuses its threads for other work.
    """
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=function.__name__)
    try:
        work = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)


class DedicatedThread:
    """One thread for one kind of long work.

    Calls run in order, one at a time, and occupy none of the shared threads. A call whose caller is
    cancelled while it is queued never runs.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function after all calls queued before it, and return its result."""
        work = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def lower_thread_priority() -> None:
    """Lower the priority of this thread and of those that it starts; this cannot be undone.

    Does nothing except on Linux, where niceness is per thread and not per process.
    """
    if sys.platform == "linux":
        niceness = os.getpriority(os.PRIO_PROCESS, 0)  # Ray's own for workers is 15
        os.setpriority(os.PRIO_PROCESS, 0, max(niceness, _THREAD_NICENESS))


def lower_process_priority() -> None:
    """Lower the CPU priority of this process: training takes hours, but a request must be quick.

    By default Ray does the same with all its workers; the application disables that, so that
    serving keeps its priority. On Linux each thread has its own niceness, which the threads that it
    starts inherit.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            niceness = os.getpriority(os.PRIO_PROCESS, int(thread.name))
            os.setpriority(os.PRIO_PROCESS, int(thread.name), max(niceness, _PROCESS_NICENESS))
