"""The one thread of the queue that reads rows."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from apps.http_api.allocator import return_large_blocks

_P = ParamSpec("_P")
_T = TypeVar("_T")


class RowThread:
    """Reads rows for new jobs, previews and checks of small files, one file after the other.

    So the queue needs the memory for one row at a time, whatever the clients ask for at once, and
    none of the threads that it needs for everything else.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="rows", initializer=return_large_blocks
        )

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function after those before it, and return what it returns.

        A call that is cancelled before its turn is never begun.
        """
        work = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def submit(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> "Future[_T]":
        """Have a function run after those before it; returns at once."""
        return self._executor.submit(function, *args, **kwargs)

    def close(self) -> None:
        """Begin nothing more; what is running continues."""
        self._executor.shutdown(wait=False, cancel_futures=True)
