"""The queue's thread for reading rows."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from system.threads import DedicatedThread

_P = ParamSpec("_P")
_T = TypeVar("_T")


class RowThread(DedicatedThread):
    """Reads rows for new jobs, previews and checks of small files, one file after the other.

    So the queue needs the memory for one row at a time, however much clients request at once, and
    reading rows occupies none of its other threads.
    """

    def __init__(self) -> None:
        super().__init__("rows")

    def submit(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> "Future[_T]":
        """Schedule a function after those that were submitted before it; return at once."""
        return self._thread.submit(function, *args, **kwargs)

    def close(self) -> None:
        """Start no more functions; the one that is running continues."""
        self._thread.shutdown(wait=False, cancel_futures=True)
