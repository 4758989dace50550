"""Threads for long or low-priority work outside the event loop."""

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
    """Run a function in a new thread that ends with it, and return its result.

    Use it for functions that change their thread, such as by `put_thread_last`:
    `asyncio.to_thread` reuses its threads for other work.
    """
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=function.__name__)
    try:
        work = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)


class OwnThread:
    """One dedicated thread for one kind of long work.

    Calls run in order, one at a time, and occupy none of the shared threads. A call whose caller is
    cancelled while it is queued never runs.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function after all calls queued before it, and return its result."""
        work = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def put_thread_last() -> None:
    """Lower the priority of this thread and of those that it starts; this cannot be undone.

    Does nothing except on Linux, where niceness is per thread and not per process.
    """
    if sys.platform == "linux":
        niceness = os.getpriority(os.PRIO_PROCESS, 0)  # Ray's own for workers is 15
        os.setpriority(os.PRIO_PROCESS, 0, max(niceness, _NICENESS))
