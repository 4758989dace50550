"""Pausing a tree of processes, so that several contenders are up and one computes."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def paused(root: psutil.Process) -> Iterator[None]:
    """Have a process and all that it started stand still, but for when they are `awake`."""
    _pause(root)
    try:
        yield
    finally:
        _resume(root)


@contextmanager
def awake(root: psutil.Process) -> Iterator[None]:
    """Let them go on meanwhile."""
    _resume(root)
    try:
        yield
    finally:
        _pause(root)


def _pause(root: psutil.Process) -> None:
    """Stop them by signal; what starts meanwhile is found by looking again."""
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
