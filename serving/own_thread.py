"""Work beside the event loop that goes after what answers."""

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

    For what leaves a thread changed, as `put_thread_last` does: `asyncio.to_thread` keeps its
    threads for others.
    """
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=function.__name__)
    try:
        work = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)


class OwnThread:
    """One thread for one kind of work that takes long.

    The work is done in order, one piece at a time, and holds none of the threads that everything
    else shares. A piece whose caller is cancelled before its turn is never begun.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function when it is its turn, and return what it returns."""
        work = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def put_thread_last() -> None:
    """Have this thread, and those that it starts, go after all others; it cannot be undone.

    Only on Linux, where niceness is a thread's and not a process's.
    """
    if sys.platform == "linux":
        niceness = os.getpriority(os.PRIO_PROCESS, 0)  # Ray's own for workers is 15
        os.setpriority(os.PRIO_PROCESS, 0, max(niceness, _NICENESS))
