"""The check of imported models in forks of a process that has imported torch, for fast tests.

`serving.store.import_process` starts a new process for each check. Most of its time are imports: 4
seconds of a core, and many times that on a busy machine, because it has a low priority. The forks
run the same program under the same limits, which are relative to what a process has used before.
`test_import_check.py` also tests the process itself.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from system.fork_server import ForkServer, serve_forks
from system.process_limits import end_with_parent

_SERVER = ForkServer("tests.preloaded_check")
_LENGTH_BYTES = 4


@pytest.fixture
def preloaded_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check models in forks of a process that is started once."""
    replaced = SimpleNamespace(**{**vars(subprocess), "run": run_in_fork})
    monkeypatch.setattr("serving.store.import_process.subprocess", replaced)


def run_in_fork(
    command: Sequence[str], *, timeout: float, env: Mapping[str, str], **others: Any
) -> "subprocess.CompletedProcess[bytes]":
    """Run the program of a check as `subprocess.run` does, with its output."""
    assert command[1:3] == ["-m", "serving.store.import_check"], command
    assert others.keys() == {"check", "stdin", "stdout"}, others
    connection, there = socket.socketpair()
    with connection:
        with there:
            pidfd = _SERVER.fork(there.fileno())
        try:
            request = json.dumps({"arguments": command[3:], "env": dict(env)}).encode()
            connection.sendall(len(request).to_bytes(_LENGTH_BYTES) + request)
            output = _read_all(connection, timeout)
        except TimeoutError:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(command), timeout) from None
        finally:
            os.close(pidfd)
    printed, _, status = output.rpartition(b"\n")
    code = os.waitstatus_to_exitcode(int(status))
    return subprocess.CompletedProcess(list(command), code, printed)


def _read_all(connection: socket.socket, timeout_s: float) -> bytes:
    connection.settimeout(timeout_s)
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def _run(descriptor: int) -> NoReturn:
    """Run the program in another fork, and send its output and its status."""
    with socket.socket(fileno=descriptor) as connection:
        length = int.from_bytes(connection.recv(_LENGTH_BYTES, socket.MSG_WAITALL))
        request = json.loads(connection.recv(length, socket.MSG_WAITALL))
        if (pid := os.fork()) == 0:
            _check(request, descriptor)
        _, status = os.waitpid(pid, 0)
        connection.sendall(f"\n{status}".encode())
    os._exit(0)


def _check(request: Mapping[str, Any], descriptor: int) -> NoReturn:
    from serving.store.import_check import main

    try:
        end_with_parent(os.getppid())
        os.environ.update(request["env"])
        os.dup2(descriptor, 1)
        sys.argv[1:] = request["arguments"]
        main()  # ends this process
    finally:
        os._exit(1)


if __name__ == "__main__":
    import serving.loading.inspection
    import serving.store.import_check  # noqa: F401 - both for the forks

    serve_forks(_run)
