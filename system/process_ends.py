"""Waiting for the ends of processes, also of those that nobody reaps."""

import time
from collections.abc import Iterable

import psutil

_POLL_S = 0.05


def wait_for_ends(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until processes have ended; return those that still run after `timeout_s` seconds.

    Unlike for `psutil.wait_procs`, a zombie has ended. A process whose parent has ended stays one
    until process 1 reaps it, which in a container may take seconds or never happen.
    """
    deadline = time.monotonic() + timeout_s
    running = list(processes)
    while running := [process for process in running if is_running(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return running


def is_running(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
