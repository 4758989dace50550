"""Pausing a tree of processes, so that several contenders are up and one computes."""

from contextlib import suppress

import psutil


def pause(root: psutil.Process) -> None:
    """Stop a process and all that it started; what starts meanwhile is found by looking again."""
    paused: set[psutil.Process] = set()
    while new := _find_tree(root) - paused:
        for process in new:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        paused |= new


def resume(root: psutil.Process) -> None:
    """Let them go on."""
    for process in _find_tree(root):
        with suppress(psutil.NoSuchProcess):
            process.resume()


def _find_tree(root: psutil.Process) -> set[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return {root, *root.children(recursive=True)}
    return set()
