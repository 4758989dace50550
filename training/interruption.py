"""How signals pause a run of `python -m training`, within a time limit, or stop it at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self

_PAUSING = (signal.SIGINT, signal.SIGTERM)


class PauseTimeoutError(BaseException):
    """A pause took longer than it may. As `KeyboardInterrupt`, no failure of what it interrupts."""


class PauseOnInterrupt:
    """Calls `pause` at the first SIGINT (Ctrl-C) or SIGTERM; a second raises `KeyboardInterrupt`.

    For the main thread alone, which handles all signals.
    """

    def __init__(self, pause: Callable[[], None], timeout_s: float | None) -> None:
        self._pause = pause
        self._timeout_s = timeout_s
        self._is_late = False
        self._is_limited = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _PAUSING:
            self._before[number] = signal.signal(number, self._handle_first)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._handle_timeout)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Raise `PauseTimeoutError` in the body from `timeout_s` after the first signal on."""
        self._is_limited = True
        try:
            if self._is_late:
                raise PauseTimeoutError
            yield
        finally:
            self._is_limited = False

    def _handle_first(self, *_: object) -> None:
        for number in _PAUSING:
            signal.signal(number, self._handle_second)
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, self._timeout_s)
        self._pause()

    def _handle_second(self, *_: object) -> NoReturn:
        self._is_limited = False
        raise KeyboardInterrupt

    def _handle_timeout(self, *_: object) -> None:
        self._is_late = True
        if self._is_limited:
            raise PauseTimeoutError
