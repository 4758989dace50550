"""A fork server: a process that has imported slow libraries and forks another for each connection.

`multiprocessing` has one, but only one for each process, with one list of modules. This process
needs two: engines need torch, while processes with a limit on their memory must not map it.
"""

import atexit
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from system.child_environment import build_child_environment

_NUM_TRIES = 2
_EXIT_PATIENCE_S = 2.0


class ForkError(Exception):
    """No process could be forked; the log has the cause."""


class ForkServer:
    """The client of a fork server; the server starts on first use and ends with this process.

    `module` is run as a program with the file descriptor of its control socket as its argument, and
    calls `serve_forks`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the server if it is not running; return before it is ready."""
        with self._lock:
            self._start()

    def fork(self, connection: int) -> int:
        """Fork a process that serves a connection, given by its file descriptor; return its pidfd.

        Blocks for milliseconds, or for seconds if the server has just been started. The caller
        closes the connection and the pidfd. Raises `ForkError`.
        """
        with self._lock:
            for _ in range(_NUM_TRIES):
                control = self._start()
                with suppress(OSError):
                    socket.send_fds(control, [b"\0"], [connection])
                    _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
                    if descriptors:
                        return descriptors[0]
                self._discard()  # the server has ended, so start a new one
        raise ForkError(f"{self._module} could not fork a process")

    def close(self) -> None:
        """End the server; processes that it has forked continue."""
        with self._lock:
            self._discard()

    def _close_at_exit(self, owner: int) -> None:
        """End the server with the process that started it, not with forks of that process."""
        # A thread that forks at this moment holds the lock; the server then ends with its socket.
        if os.getpid() == owner and self._lock.acquire(timeout=_EXIT_PATIENCE_S):
            try:
                self._discard()
            finally:
                self._lock.release()

    def _start(self) -> socket.socket:
        if self._control is None:
            atexit.unregister(self._close_at_exit)
            atexit.register(self._close_at_exit, os.getpid())
            control, there = socket.socketpair()
            with there:
                self._process = subprocess.Popen(  # noqa: S603 - our own command
                    [sys.executable, "-m", self._module, str(there.fileno())],
                    pass_fds=[there.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=build_child_environment({}),
                )
            self._control = control
        return self._control

    def _discard(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def serve_forks(run: Callable[[int], NoReturn]) -> None:
    """Be the server: fork for every connection until the client closes the control socket.

    Each forked process calls `run` with the file descriptor of its connection.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended processes are reaped by the kernel
    # Garbage collection in a fork writes to all objects that are not frozen, which would copy the
    # memory that all forks share.
    gc.collect()
    gc.freeze()
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            run(descriptors[0])
        os.close(descriptors[0])
        process = os.pidfd_open(pid)
        socket.send_fds(control, [b"\0"], [process])
        os.close(process)
