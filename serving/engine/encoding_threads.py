"""Threads that encode text; long texts, which take seconds, share one dedicated thread."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from system.threads import DedicatedThread

LONG_CHARACTERS = 100_000
_P = ParamSpec("_P")
_T = TypeVar("_T")

_LONG = DedicatedThread("encode-long")


async def run_encoding(
    num_characters: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Run a function that encodes `num_characters` in a thread and return its result.

    Long texts are encoded one at a time, so that they do not occupy the threads that short texts
    need.
    """
    if num_characters > LONG_CHARACTERS:
        return await _LONG.run(function, *args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
