"""Expected errors as return values between two Serve deployments.

Serve logs the traceback of every exception that leaves a replica's method, forty lines per invalid
request. Methods therefore return expected errors as a `Refusal`, and the caller raises them.
"""

import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Call = Callable[P, Coroutine[Any, Any, T]]


@dataclass(frozen=True)
class Refusal:
    """An expected error that a call returns in place of its result; the caller raises `error`."""

    error: Exception


def return_refusals(
    *kinds: type[Exception],
) -> Callable[[Call[P, T]], Call[P, T | Refusal]]:
    """Return a decorator that makes a coroutine function return exceptions of these types."""

    def decorate(call: Call[P, T]) -> Call[P, T | Refusal]:
        @functools.wraps(call)
        async def answer(*args: P.args, **kwargs: P.kwargs) -> T | Refusal:
            try:
                return await call(*args, **kwargs)
            except kinds as exc:
                return make_refusal(exc)

        return answer

    return decorate


def unwrap(result: T | Refusal) -> T:
    """Return the result of a call; raise the error of a `Refusal`."""
    if isinstance(result, Refusal):
        raise result.error
    return result


def make_refusal(exc: Exception) -> Refusal:
    """Wrap an exception without traceback and causes, which may refer to unpicklable objects."""
    exc.__cause__ = exc.__context__ = None
    return Refusal(exc.with_traceback(None))
