"""Threads that turn text into tokens, with one for long texts, which take seconds."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

LONG_CHARACTERS = 100_000
_P = ParamSpec("_P")
_T = TypeVar("_T")

_LONG = ThreadPoolExecutor(max_workers=1, thread_name_prefix="encode-long")


async def run_encoding(
    num_characters: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Run a function that encodes `num_characters` on a thread, and return what it returns.

    Long texts are encoded one at a time, so that those of one client do not hold the threads that
    short ones need.
    """
    threads = _LONG if num_characters > LONG_CHARACTERS else None  # None: the loop's own
    work = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(threads, work)
