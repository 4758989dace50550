"""Detection of steps that hang, with a report of where each worker is.

A collective operation waits for ever, or for half an hour, if one worker does not take part in it.
From outside, such a run looks busy. Every worker has a watchdog: a thread that wakes every few
seconds, compares the duration of the current step with the median of the previous steps, and writes
the stack of the training thread to the log and to the events, once per step. The cost for a step is
two assignments.

The thread needs Python's global interpreter lock, so a C++ operation that holds this lock hides a
hang. PyTorch's operations and collectives release the lock.
"""

import logging
import statistics
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, get_ident

from training.run.folder import RunFolder

logger = logging.getLogger(__name__)

STALL_FACTOR = 20.0
MIN_STALL_S = 60.0
"""The shortest duration after which a step is reported, however fast the others are: a cold cache
or a busy disk may be the cause."""
POLL_S = 5.0
_MIN_STEPS = 5  # the fewest for a meaningful median
_MAX_STEPS = 101
_MAX_FRAMES = 12
_MAX_REPORTING_RANKS = 64


class Watchdog:
    """Watches the steps of the thread that enters `watch`."""

    def __init__(
        self,
        report: Callable[[int, float, float, list[str]], None],
        min_stall_s: float = MIN_STALL_S,
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a watchdog; `report` gets the step, its seconds, the median of others, the stack.

        The two durations are in seconds.
        """
        self._report = report
        self._min_stall_s = min_stall_s
        self._poll_s = poll_s
        self._clock = clock
        self._thread_id = 0
        self._step: tuple[int, float] | None = None  # its number, and when it began
        self._reported: int | None = None
        self._took_s: deque[float] = deque(maxlen=_MAX_STEPS)
        self._is_over = Event()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the calling thread's steps while the body runs."""
        self._thread_id = get_ident()
        thread = Thread(target=self._run, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def begin_step(self, step: int) -> None:
        """Record that a step begins."""
        self._step = step, self._clock()

    def end_step(self) -> None:
        """Record that the step has ended; the time until the next step is not watched."""
        assert self._step is not None
        self._took_s.append(self._clock() - self._step[1])
        self._step = None

    def check(self) -> None:
        """Report the current step if it takes too long and has not been reported yet."""
        under_way, took_s = self._step, list(self._took_s)
        if under_way is None or len(took_s) < _MIN_STEPS:
            return
        step, began = under_way
        median_s = statistics.median(took_s)
        waited_s = self._clock() - began
        if step == self._reported or waited_s < max(STALL_FACTOR * median_s, self._min_stall_s):
            return
        stack = self._dump_stack()
        if self._step == under_way:  # else it ended while the stack was read
            self._reported = step
            self._report(step, waited_s, median_s, stack)

    def _run(self) -> None:
        while not self._is_over.wait(self._poll_s):
            try:
                self.check()
            except Exception:
                logger.exception("the watchdog failed")  # a full disk; the training continues

    def _dump_stack(self) -> list[str]:
        """Return the stack frames of the watched thread, innermost last."""
        frame = sys._current_frames().get(self._thread_id)
        frames = traceback.extract_stack(frame) if frame is not None else []
        return [f"{one.filename}:{one.lineno} {one.name}: {one.line}" for one in frames]


def report_stall(
    run: RunFolder, rank: int, step: int, waited_s: float, median_s: float, stack: list[str]
) -> None:
    """Write a worker's stack to the log of a run, and its innermost frames to the events."""
    logger.warning(
        "worker %d: step %d has taken %.0f s, others took %.3g s; it is at\n  %s",
        rank,
        step,
        waited_s,
        median_s,
        "\n  ".join(stack),
    )
    if rank >= _MAX_REPORTING_RANKS:
        return
    run.events.add(
        f"Step {step} has taken {waited_s:.0f} s on worker {rank}, where other steps took "
        f"{median_s:.3g} s; the log has where each worker waits",
        level="warn",
        code="step_stalled",
        data={
            "rank": rank,
            "step": step,
            "waited_s": round(waited_s, 1),
            "median_s": round(median_s, 4),
            "stack": [line.rpartition("/")[2] for line in stack[-_MAX_FRAMES:]],
        },
    )
