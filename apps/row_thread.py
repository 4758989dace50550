"""The one thread of the queue that reads rows."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from serving.own_thread import OwnThread

_P = ParamSpec("_P")
_T = TypeVar("_T")


class RowThread(OwnThread):
    """Reads rows for new jobs, previews and checks of small files, one file after the other.

    So the queue needs the memory for one row at a time, whatever the clients ask for at once, and
    none of the threads that it needs for everything else.
    """

    def __init__(self) -> None:
        super().__init__("rows")

    def submit(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> "Future[_T]":
        """Have a function run after those before it; returns at once."""
        return self._thread.submit(function, *args, **kwargs)

    def close(self) -> None:
        """Begin nothing more; what is running continues."""
        self._thread.shutdown(wait=False, cancel_futures=True)
