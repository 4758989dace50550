"""The command by which Ray starts a worker in tests: it lets `tests.forked_workers` fork it.

Ray adds the command of the worker to `worker_launcher.py SOCKET`. The launcher lives as long as the
worker and ends with its status. If there is no server, it becomes the worker itself.
"""

import json
import os
import socket
import sys
from typing import Any

SOCKET_VARIABLE = "TEST_WORKER_SOCKET"
LENGTH_BYTES = 4
_DRIVERS = {"training.__main__", "apps.fine_tuning.cluster.job_main"}


def choose_executable(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """Let this launcher start all workers of a training; Ray calls it (`RAY_RUNTIME_ENV_HOOK`)."""
    main: Any = sys.modules["__main__"]
    address = os.environ.get(SOCKET_VARIABLE)
    if address is None or main.__spec__ is None or main.__spec__.name not in _DRIVERS:
        return runtime_env
    launcher = f"{sys.executable} -S -E {os.path.abspath(__file__)} {address}"
    return {**(runtime_env or {}), "py_executable": launcher}


def main() -> int:
    """Start the worker; returns its exit status."""
    address, *command = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
        except OSError:
            os.execv(sys.executable, [sys.executable, *command])
        request = {
            "command": command,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        }
        data = json.dumps(request).encode()
        socket.send_fds(connection, [len(data).to_bytes(LENGTH_BYTES)], [0, 1, 2])
        connection.sendall(data)
        status = connection.makefile("rb").read()
    return int(status or b"1")


if __name__ == "__main__":
    sys.exit(main())
