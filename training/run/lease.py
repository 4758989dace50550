"""The lease of a run: one process at a time computes it, and its heartbeat shows that it is alive.

On one machine the lease is a file lock, which is released when its process dies. On some shared
file systems, locks do not work between machines, so the process also writes a line every few
seconds. Other machines consider the process dead once the line has not changed for a while by their
own clock.
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
from training.run.folder import RunFolder

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 3.0
LEASE_S = 30.0
"""Time without a new heartbeat after which the lease expires."""

_ROLE = "driver"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def acquire_lease(run: RunFolder, *, timeout_s: float = 0.0) -> Iterator[None]:
    """Acquire the lease of a run, and hold it, with a heartbeat, while the body runs.

    Raises `RunBusyError` if another process has it for all of `timeout_s`. If this process
    stalls for too long and another one takes over, this process kills itself once it finds out.
    """
    with run.lock(_ROLE, timeout_s):
        heartbeat = _Heartbeat(run)
        heartbeat.write()
        thread = Thread(target=heartbeat.keep_writing, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            heartbeat.stopped.set()
            thread.join()
            run.heartbeat_file.unlink(missing_ok=True)


class LeaseWatch:
    """Checks which runs are computed by a living process, as far as this machine can see."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}  # each run's last line, first seen at

    def is_alive(self, run: RunFolder) -> bool:
        """Return whether a process computes a run; a death on another machine is noticed late."""
        if run.is_locked(_ROLE):
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


class _Heartbeat:
    def __init__(self, run: RunFolder) -> None:
        self.stopped = Event()
        self._run = run
        self._owner = f"{_name_machine()} {os.getpid()}"
        self._num_lines = 0

    def write(self) -> None:
        self._num_lines += 1
        temporary = self._run.heartbeat_file.with_name(".heartbeat")
        temporary.write_text(f"{self._owner} {self._num_lines}")
        os.replace(temporary, self._run.heartbeat_file)  # readers never see a partial line

    def keep_writing(self) -> None:
        while not self.stopped.wait(HEARTBEAT_INTERVAL_S):
            try:
                line = _read(self._run)
                if line and not line.startswith(f"{self._owner} "):
                    logger.critical("run %s is computed by %s now", self._run.path.name, line)
                    os.kill(os.getpid(), signal.SIGKILL)
                self.write()
            except OSError:
                logger.exception("the heartbeat of run %s cannot be written", self._run.path.name)


def _read(run: RunFolder) -> str:
    try:
        return read_regular(run.heartbeat_file).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _name_machine() -> str:
    """Identify the kernel, which owns the file locks: its containers have their own host names."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # not Linux
        return socket.gethostname()
