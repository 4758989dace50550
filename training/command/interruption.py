"""Signal handling of `python -m training`: pause within a time limit, or stop at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self

_PAUSING = (signal.SIGINT, signal.SIGTERM)
_REPEAT_S = 5.0


class PauseTimeoutError(BaseException):
    """A pause took longer than its time limit. Not an `Exception`, like `KeyboardInterrupt`."""


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the body at SIGTERM, as at Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class PauseOnInterrupt:
    """Calls `pause` at the first SIGINT (Ctrl-C) or SIGTERM; a second raises `KeyboardInterrupt`.

    For use on the main thread only, which handles all signals.
    """

    def __init__(self, pause: Callable[[], None], timeout_s: float | None) -> None:
        self._pause = pause
        self._timeout_s = timeout_s
        self._handler: Callable[..., None] = self._handle_first
        self._is_late = False
        self._is_limited = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in (*_PAUSING, signal.SIGALRM)}
        signal.signal(signal.SIGALRM, self._handle_timeout)
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        for number in _PAUSING:
            signal.signal(number, self._before[number])
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before[signal.SIGALRM])

    def install(self) -> None:
        """Install the handlers, again if a library has replaced them."""
        for number in _PAUSING:
            signal.signal(number, self._handler)

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Raise `PauseTimeoutError` in the body once `timeout_s` has passed since the first signal.

        Python drops an exception that a handler raises inside of a finalizer, so the alarm repeats.
        """
        self._is_limited = True
        try:
            if self._is_late:
                raise PauseTimeoutError
            yield
        finally:
            self._is_limited = False

    def _handle_first(self, *_: object) -> None:
        self._handler = self._handle_second
        self.install()
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, self._timeout_s, _REPEAT_S)
        self._pause()

    def _handle_second(self, *_: object) -> NoReturn:
        self._is_limited = False
        raise KeyboardInterrupt

    def _handle_timeout(self, *_: object) -> None:
        self._is_late = True
        if self._is_limited:
            raise PauseTimeoutError
