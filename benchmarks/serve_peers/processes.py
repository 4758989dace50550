"""Suspending process trees, so that of several running contenders only one uses the CPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

_CATCH_UP_S = 10.0
_QUIET_SHARE = 0.25  # of a core; an idle application uses less


@contextmanager
def paused(root: psutil.Process) -> Iterator[None]:
    """Suspend a process and its descendants, except while they are `awake`."""
    _pause(root)
    try:
        yield
    finally:
        _resume(root)


@contextmanager
def awake(root: psutil.Process) -> Iterator[None]:
    """Resume a paused process tree for the duration of the context."""
    _resume(root)
    try:
        yield
    finally:
        _pause(root)


def wait_until_quiet(root: psutil.Process) -> None:
    """Wait until a resumed process tree has caught up with its overdue work, at most 10 s."""
    give_up = time.monotonic() + _CATCH_UP_S
    before = _measure_cpu_s(root)
    while time.monotonic() < give_up:
        time.sleep(1)
        now = _measure_cpu_s(root)
        if now - before < _QUIET_SHARE:
            return
        before = now


def _measure_cpu_s(root: psutil.Process) -> float:
    total = 0.0
    for process in _find_tree(root):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _pause(root: psutil.Process) -> None:
    """Suspend a process tree by signal, repeating until there are no new processes."""
    stopped: set[psutil.Process] = set()
    while new := _find_tree(root) - stopped:
        for process in new:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        stopped |= new


def _resume(root: psutil.Process) -> None:
    for process in _find_tree(root):
        with suppress(psutil.NoSuchProcess):
            process.resume()


def _find_tree(root: psutil.Process) -> set[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return {root, *root.children(recursive=True)}
    return set()
