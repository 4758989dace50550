"""A third-party tracker on a separate thread, so that it can neither block nor end a training.

A server that does not answer blocks its caller, for minutes with the retries of the MLflow and W&B
clients. The thread opens the tracker, passes figures from a queue to it, and closes it. A tracker
that raises, does not answer in time, or is slower than the training is switched off: `log` then
raises `TrackerOffError`, which the journal reports once.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, Protocol

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 120.0
"""Time limit for one call of a tracker, including opening it."""
CLOSE_TIMEOUT_S = 20.0
"""Time limit for the queued figures and for closing, at the end of a training."""
MAX_WAITING = 1000
"""The most steps that may be queued for a tracker."""

_Outcome = tuple[Any, Any, Any]


class Tracker(Protocol):
    """Records the figures of steps."""

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Record figures under their names."""


class TrackerOffError(RuntimeError):
    """A tracker failed, did not answer or was too slow, and gets no more figures."""


class TrackerThread:
    """Passes figures to a tracker; `log` returns immediately."""

    def __init__(
        self,
        name: str,
        open_tracker: Callable[[], AbstractContextManager[Tracker]],
        call_timeout_s: float = CALL_TIMEOUT_S,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.name = name
        self._open_tracker = open_tracker
        self._call_timeout_s = call_timeout_s
        self._waiting: Queue[tuple[dict[str, float], int] | None] = Queue(max_waiting)
        self._outcome: _Outcome | None = None
        self._is_closing = Event()
        self._busy_since: float | None = time.monotonic()
        self._failure: BaseException | None = None
        self._is_reported = False
        self._thread = Thread(target=self._run, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Queue figures for the tracker; raises `TrackerOffError` if the tracker is off."""
        self._check()
        try:
            self._waiting.put_nowait((dict(figures), step))
        except Full:
            num_waiting = self._waiting.maxsize
            self._switch_off(f"it is slower than the training: {num_waiting:,} steps wait for it")

    def request_close(self, outcome: _Outcome) -> None:
        """Request to close the tracker after the queue; `outcome` is the body's, as in `with`."""
        self._outcome = outcome
        self._is_closing.set()
        with suppress(Full):  # if full, the thread is not waiting, and sees the flag
            self._waiting.put_nowait(None)

    def join(self, timeout_s: float) -> str | None:
        """Wait for the end; returns why figures are missing, None if none are or it is reported."""
        self._thread.join(timeout_s)
        if self._is_reported:
            return None
        if self._thread.is_alive():
            return f"it did not take the last figures within {timeout_s:.3g} s"
        return None if self._failure is None else _describe(self._failure)

    def _check(self) -> None:
        if self._failure is not None:
            self._switch_off(_describe(self._failure))
        since = self._busy_since
        if since is not None and time.monotonic() - since > self._call_timeout_s:
            self._switch_off(f"it has not answered for {self._call_timeout_s:g} s")

    def _switch_off(self, reason: str) -> None:
        self._is_reported = True
        raise TrackerOffError(reason) from self._failure

    def _run(self) -> None:
        try:
            opened = self._open_tracker()
            tracker = opened.__enter__()
        except Exception as exc:
            logger.exception("tracker %s cannot be opened", self.name)
            self._failure = exc
            return
        self._busy_since = None
        self._forward_figures(tracker)
        self._busy_since = time.monotonic()
        try:
            opened.__exit__(*(self._outcome or (None, None, None)))
        except Exception as exc:
            # A context manager that does not suppress the body's exception may raise it again.
            if self._outcome is None or exc is not self._outcome[1]:
                logger.exception("tracker %s cannot be closed", self.name)

    def _forward_figures(self, tracker: Tracker) -> None:
        """Pass figures on until the tracker fails, or closing is requested and the queue empty."""
        while not (self._is_closing.is_set() and self._waiting.empty()):
            if (taken := self._waiting.get()) is None:
                continue
            figures, step = taken
            self._busy_since = time.monotonic()
            try:
                tracker.log(figures, step)
            except Exception as exc:
                logger.exception("tracker %s failed", self.name)
                self._failure = exc
                return
            self._busy_since = None


def _describe(failure: BaseException) -> str:
    return " ".join(str(failure).split())[:300] or type(failure).__name__
