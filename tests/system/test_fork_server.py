import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from system.fork_server import ForkError, ForkServer
from tests.process_tree import find_fork_servers

DEADLINE_S = 20.0
ECHO = """
import os, socket
from system.fork_server import serve_forks

def run(descriptor):
    with socket.socket(fileno=descriptor) as connection:
        connection.sendall(str(os.getpid()).encode())
        connection.recv(1)
    os._exit(0)

serve_forks(run)
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    (tmp_path / "echo_process.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)
    server = ForkServer("echo_process")
    yield server
    server.close()


def fork(server: ForkServer) -> tuple[socket.socket, int]:
    """Return the connection to a new process and its pidfd."""
    connection, there = socket.socketpair()
    connection.settimeout(DEADLINE_S)
    with there:
        return connection, server.fork(there.fileno())


def test_forked_process_serves_its_connection(server: ForkServer) -> None:
    connection, pidfd = fork(server)
    with connection:
        forked = psutil.Process(int(connection.recv(100)))
        (process,) = find_fork_servers("echo_process")
        assert forked.ppid() == process.pid
        signal.pidfd_send_signal(pidfd, 0)
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    assert ended.poll(DEADLINE_S * 1000), "the process did not end with its connection"
    os.close(pidfd)


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.004, 0.008, 0.016])
def test_server_killed_between_forks_is_replaced(server: ForkServer, delay_s: float) -> None:
    """Its socket is closed some time before its exit can be detected."""
    for _ in range(2):
        connection, pidfd = fork(server)
        os.close(pidfd)
        with connection:
            assert connection.recv(100)
        (process,) = find_fork_servers("echo_process")
        process.kill()
        time.sleep(delay_s)  # the moment under test, not a wait for a condition


def test_server_ends_with_the_process_that_started_it(
    tmp_path: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a warning about a process that still runs, and not with a fork of that process."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    script = """
import atexit, os, psutil
from system.fork_server import ForkServer

server = ForkServer("echo_process")
server.start()
(process,) = psutil.Process().children()
if (pid := os.fork()) == 0:
    atexit._run_exitfuncs()
    os._exit(0)
os.waitpid(pid, 0)
print(process.is_running() and process.status() != "zombie", process.pid)
"""
    command = [sys.executable, "-W", "always", "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stderr) == (0, "")
    was_running, pid = ended.stdout.split()
    assert was_running == "True"
    assert not psutil.pid_exists(int(pid))


def test_server_without_its_module_raises() -> None:
    server = ForkServer("no_such_module")
    connection, there = socket.socketpair()
    with connection, there, pytest.raises(ForkError, match="^no_such_module could not fork"):
        server.fork(there.fileno())
    server.close()


def test_server_ends_with_its_client_before_the_first_fork(tmp_path: Path) -> None:
    (tmp_path / "echo_process.py").write_text(ECHO)
    here, there = socket.socketpair()
    with there:
        process = subprocess.Popen(
            [sys.executable, "-m", "echo_process", str(there.fileno())],
            pass_fds=[there.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        )
    here.close()
    assert process.wait(DEADLINE_S) == 0
