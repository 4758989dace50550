"""Client of the fork server that forks one render process per model.

See `templating.render_process`.
"""

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress

from templating.errors import RenderProcessError

_NUM_TRIES = 2


class RenderForkServer:
    """Forks render processes; its own process starts on first use and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the fork server if it is not running; return before it is ready."""
        with self._lock:
            self._start()

    def fork(self) -> tuple[socket.socket, int]:
        """Fork a render process; return the connection to it and its pidfd.

        Blocks for milliseconds, or for a second if the fork server has just been started. Raises
        `RenderProcessError`.
        """
        connection, there = socket.socketpair()
        with there, self._lock:
            for _ in range(_NUM_TRIES):
                control = self._start()
                with suppress(OSError):
                    socket.send_fds(control, [b"\0"], [there.fileno()])
                    _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
                    if descriptors:
                        return connection, descriptors[0]
                self._discard()  # the fork server has ended
        connection.close()
        raise RenderProcessError(
            "no process could be started to render chat templates; the log has the cause"
        )

    def _start(self) -> socket.socket:
        if self._control is None:
            control, there = socket.socketpair()
            with there:
                self._process = subprocess.Popen(  # noqa: S603 - our own command
                    [sys.executable, "-m", "templating.render_process", str(there.fileno())],
                    pass_fds=[there.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
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


render_fork_server = RenderForkServer()
