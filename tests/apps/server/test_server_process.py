"""The process of `serve run`: its environment, Ray's token, and its shutdown."""

import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from apps.drain import DrainSignal
from apps.server.server_process import (
    build_environment,
    drain_server,
    keep_token_private,
    start_server,
    stop_server,
)

BINDING = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def test_ray_log_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = build_environment()
    num_files = 1 + int(environment["RAY_ROTATION_BACKUP_COUNT"])
    assert int(environment["RAY_ROTATION_MAX_BYTES"]) * num_files <= 100_000_000
    monkeypatch.setenv("RAY_ROTATION_MAX_BYTES", "7")
    assert build_environment()["RAY_ROTATION_MAX_BYTES"] == "7"


@pytest.fixture(autouse=True)
def no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a cluster and without Ray's environment variables."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    tokens = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    for name in ("RAY_ADDRESS", "RAY_worker_niceness", BINDING, *tokens):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def recorded_cluster(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")


def test_own_cluster_listens_only_on_loopback_address() -> None:
    assert build_environment()[BINDING] == "0"


def test_environment_variables_of_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINDING, "1")
    monkeypatch.setenv("RAY_worker_niceness", "7")
    environment = build_environment()
    assert environment[BINDING] == "1"
    assert environment["RAY_worker_niceness"] == "7"


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "auto"])
def test_named_cluster_is_joined_without_loopback_setting(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert BINDING not in build_environment()


@pytest.mark.usefixtures("recorded_cluster")
def test_running_cluster_is_joined_unless_own_cluster_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert BINDING not in build_environment()
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert BINDING in build_environment()


def test_ray_token_file_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    token = tmp_path / ".ray" / "auth_token"
    keep_token_private()
    content = token.read_text()
    assert len(content) == 64
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    token.chmod(0o644)
    keep_token_private()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_text() == content


def test_token_file_named_by_user_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "token"
    named.write_text("of the user's")
    named.chmod(0o644)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(named))
    keep_token_private()
    assert stat.S_IMODE(named.stat().st_mode) == 0o644
    assert not (tmp_path / ".ray").exists()


def test_server_ends_with_killed_supervisor() -> None:
    program = (
        "import sys\n"
        "from apps.server.server_process import start_server\n"
        "server = start_server([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(server.pid, flush=True)\n"
        "server.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        server = psutil.Process(int(supervisor.stdout.readline()))
        supervisor.kill()
    assert not psutil.wait_procs([server], timeout=10)[1]


def test_stop_server_ends_its_child_processes() -> None:
    sleep = "import time; time.sleep(60)"
    program = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    server = start_server([sys.executable, "-c", program])
    assert server.stdout is not None
    child = psutil.Process(int(server.stdout.readline()))
    stop_server(server, timeout_s=1)
    server.stdout.close()
    assert not psutil.wait_procs([child], timeout=10)[1]


def test_second_signal_shortens_wait_for_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second signal arrives during the wait for a server that ignores the first one."""
    monkeypatch.setattr("apps.server.server_process.URGENT_TIMEOUT_S", 0.1)
    program = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(flush=True)\n"
        "time.sleep(60)\n"
    )
    server = start_server([sys.executable, "-c", program])
    assert server.stdout is not None
    server.stdout.readline()
    answers = iter([False, False])
    started = time.monotonic()
    stop_server(server, timeout_s=50, is_urgent=lambda: next(answers, True))
    assert time.monotonic() - started < 40
    server.stdout.close()
    assert server.returncode == -signal.SIGKILL


def test_first_signal_requests_stop_and_second_is_recorded() -> None:
    program = (
        "import os, signal\n"
        "from apps.server.stop_signals import StopRequested, StopSignals\n"
        "stop = StopSignals()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "try:\n"
        "    stop.arm()\n"
        "except StopRequested as exc:\n"
        "    print(exc, stop.is_repeated)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print(stop.is_repeated)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("SIGTERM False\nTrue\n", "")


@pytest.fixture
def paused_runs(tmp_path: Path) -> DrainSignal:
    """The drain signal of an application whose fine-tunes are already paused."""
    signal_folder = DrainSignal(tmp_path)
    signal_folder.report_runs_paused()
    return signal_folder


def test_unresponsive_proxy_is_not_drained(
    paused_runs: DrainSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.server.server_process._HEALTH_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        left = drain_server(url, paused_runs, 0.5, is_over=lambda: False)
    assert left.num_requests is None
    assert not left.is_done


def test_ended_proxy_has_no_requests_in_progress(paused_runs: DrainSignal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    left = drain_server(url, paused_runs, 5.0, is_over=lambda: False)
    assert left.num_requests == 0
    assert left.is_done
