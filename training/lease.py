"""Who computes a run: one process at a time, which shows by a heartbeat that it is alive.

On one machine a file lock says so, which dies with its process. Not every file system that several
machines share has locks that hold between them, so the process also writes a line every few
seconds; for others it is dead once the line has stood still for a while by their own clock.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from storage.regular_file import read_regular
from training.runs import RunFolder

logger = logging.getLogger(__name__)

BEAT_S = 3.0
LEASE_S = 30.0
"""For so long a heartbeat may stand still."""

_ROLE = "driver"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def hold_lease(run: RunFolder, *, timeout_s: float = 0.0) -> Iterator[None]:
    """Be the one process that computes a run, and tell of it as long as the body lasts.

    Raises `RunBusyError` if another one has been so for all of `timeout_s`. Whoever finds that
    another one took over, because this one stood still for too long, ends at once.
    """
    with run.hold(_ROLE, timeout_s):
        heart = _Heart(run)
        heart.beat()
        beating = Thread(target=heart.keep_beating, name="heartbeat", daemon=True)
        beating.start()
        try:
            yield
        finally:
            heart.stopped.set()
            beating.join()
            run.heartbeat_file.unlink(missing_ok=True)


class LeaseWatch:
    """Tells which runs are computed by a living process, as far as can be seen from here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}  # the last line of each run, and since when

    def is_alive(self, run: RunFolder) -> bool:
        """Whether somebody computes a run; one of another machine may be given up a while late."""
        if run.is_held(_ROLE):
            return True
        line = _read(run)
        machine, _, _ = line.partition(" ")
        if not line or machine == _name_machine():
            return False
        last, since = self._seen.get(run.path.name, ("", 0.0))
        if line != last:
            self._seen[run.path.name] = line, self._clock()
            return True
        return self._clock() - since < LEASE_S


class _Heart:
    def __init__(self, run: RunFolder) -> None:
        self.stopped = Event()
        self._run = run
        self._owner = f"{_name_machine()} {os.getpid()}"
        self._num_beats = 0

    def beat(self) -> None:
        self._num_beats += 1
        temporary = self._run.heartbeat_file.with_name(".heartbeat")
        temporary.write_text(f"{self._owner} {self._num_beats}")
        os.replace(temporary, self._run.heartbeat_file)  # who reads never finds half of it

    def keep_beating(self) -> None:
        while not self.stopped.wait(BEAT_S):
            try:
                line = _read(self._run)
                if line and not line.startswith(f"{self._owner} "):
                    logger.critical("run %s is computed by %s now", self._run.path.name, line)
                    os.kill(os.getpid(), signal.SIGKILL)
                self.beat()
            except OSError:
                logger.exception("the heartbeat of run %s cannot be written", self._run.path.name)


def _read(run: RunFolder) -> str:
    try:
        return read_regular(run.heartbeat_file).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _name_machine() -> str:
    """Name the kernel that file locks are of: containers on it have host names of their own."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # not Linux
        return socket.gethostname()
