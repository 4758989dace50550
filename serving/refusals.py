"""Expected refusals as values between two Serve deployments.

Serve logs every exception that leaves a replica's method with its traceback, forty lines for each
bad request. So a method returns what it refuses, and the caller raises it.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Call = Callable[P, Coroutine[Any, Any, T]]


@dataclass(frozen=True)
class Refusal:
    """What a call returns in place of its result; `error` is for the caller to raise."""

    error: Exception


def return_refusals(
    *kinds: type[Exception],
) -> Callable[[Call[P, T]], Call[P, T | Refusal]]:
    """Make a decorator that lets a coroutine function return exceptions of these kinds."""

    def decorate(call: Call[P, T]) -> Call[P, T | Refusal]:
        @functools.wraps(call)
        async def answer(*args: P.args, **kwargs: P.kwargs) -> T | Refusal:
            try:
                return await call(*args, **kwargs)
            except kinds as exc:
                return _make_refusal(exc)

        return answer

    return decorate


async def yield_refusals(
    items: AsyncGenerator[Any, None], *kinds: type[Exception]
) -> AsyncGenerator[Any, None]:
    """Yield items, and an exception of these kinds as the last of them."""
    async with aclosing(items):
        try:
            async for item in items:
                yield item
        except kinds as exc:
            yield _make_refusal(exc)


def take(result: T | Refusal) -> T:
    """Return the result of a call; raises what it refused."""
    if isinstance(result, Refusal):
        raise result.error
    return result


def _make_refusal(exc: Exception) -> Refusal:
    """Leave the traceback and the causes behind: they may hold what cannot be pickled."""
    exc.__cause__ = exc.__context__ = None
    return Refusal(exc.with_traceback(None))
