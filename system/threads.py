"""Threads for long work outside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

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
