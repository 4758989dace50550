"""The processes of a running application by role, and functions that kill them."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from system.process_ends import wait_for_ends
from tests.e2e.conftest import Application
from tests.process_tree import read_command

_REPLICA = "ray::ServeReplica"


@dataclass(frozen=True)
class Target:
    """A kind of process to kill; `find` returns the processes of that kind that are alive."""

    name: str
    find: Callable[[Application], list[psutil.Process]]


def list_processes(application: Application) -> list[psutil.Process]:
    """Return every process of the application, the supervisor first."""
    root = psutil.Process(application.process.pid)
    return [root, *root.children(recursive=True)]


def find_by_command(*words: str) -> Callable[[Application], list[psutil.Process]]:
    """Return a function that finds the processes whose command line contains all `words`."""

    def find(application: Application) -> list[psutil.Process]:
        return [
            process
            for process in list_processes(application)
            if all(word in read_command(process) for word in words)
        ]

    return find


def find_replica(deployment: str) -> Callable[[Application], list[psutil.Process]]:
    """Return a function that finds the replicas of a Serve deployment."""
    return find_by_command(f"{_REPLICA}:", f":{deployment}")


def kill_tree(root: psutil.Process, timeout_s: float = 30.0) -> None:
    """Kill a process and all its descendants; they are stopped first, so that none can fork."""
    processes = [root, *root.children(recursive=True)]
    for process in processes:
        send_signal(process, signal.SIGSTOP)
    for process in processes:
        send_signal(process, signal.SIGKILL)
    assert not wait_for_ends(processes, timeout_s)


def send_signal(process: psutil.Process, number: signal.Signals) -> bool:
    """Send a signal; returns whether the process was still alive."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True
