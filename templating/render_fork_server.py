"""The fork server of render processes, one for each model; see `templating.render_process`."""

import socket

from system.fork_server import ForkError, ForkServer
from templating.errors import RenderProcessError

render_fork_server = ForkServer("templating.render_process")


def fork_renderer() -> tuple[socket.socket, int]:
    """Fork a render process; return the connection to it and its pidfd.

    Raises `RenderProcessError`.
    """
    connection, there = socket.socketpair()
    try:
        with there:
            return connection, render_fork_server.fork(there.fileno())
    except ForkError as exc:
        connection.close()
        raise RenderProcessError(
            "no process could be started to render chat templates; the log has the cause"
        ) from exc
