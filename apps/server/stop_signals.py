"""Signals that ask a command to stop: gracefully at the first one, at once at the second one."""

import signal
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class StopRequested(BaseException):
    """A signal asked this process to stop; the message is the signal's name."""


class StopSignals:
    """Handlers that record signals, and raise `StopRequested` at the first one after `arm`."""

    def __init__(self) -> None:
        self.is_repeated = False
        self._is_armed = False
        self._last: signal.Signals | None = None
        for number in _SIGNALS:
            signal.signal(number, self._receive)

    def arm(self) -> None:
        """Raise `StopRequested` in the main thread at the next signal, or now if one has come."""
        self._is_armed = True
        if self._last is not None:
            self._raise()

    def disarm(self) -> None:
        """Only record signals from now on."""
        self._is_armed = False

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.is_repeated = self._last is not None
        self._last = signal.Signals(number)
        if self._is_armed:
            self._raise()

    def _raise(self) -> None:
        assert self._last is not None
        self._is_armed = False
        raise StopRequested(self._last.name)
