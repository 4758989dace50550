"""The process of `serve run`: its environment, how it starts, and how it stops."""

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from apps.cli import preflight
from apps.drain import DrainSignal
from system.process_ends import wait_for_ends

STOP_TIMEOUT_S = 30.0
URGENT_TIMEOUT_S = 5.0
_POLL_S = 0.2
_HEALTH_TIMEOUT_S = 5.0
_PR_SET_PDEATHSIG = 1  # prctl(2)
RAY_SETTINGS = {
    # Reduces the time of a streamed token from the model to the client to a third.
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    # Large uploads are received no faster than they are written to disk.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "apps.middleware.proxy:build_middlewares",
    # A window of an upload is sent in a message instead of shared memory, whose pages stay
    # allocated: a third faster, and 45 MB less memory in the replica.
    "RAY_max_direct_call_object_size": "1000000",
    # By default, the controller reconciles ten times a second: 5 % of a core for three deployments.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Size and number of the rotated log files of each process; by default 0.5 GB and five.
    "RAY_ROTATION_MAX_BYTES": "20000000",
    "RAY_ROTATION_BACKUP_COUNT": "2",
    # Serving has priority; by default every worker has the niceness that only training should have.
    "RAY_worker_niceness": "0",
}
_OWN_CLUSTER = {
    # A client that reaches one of Ray's ports and has its token can execute code. By default Ray
    # listens on all interfaces; with this, the node is 127.0.0.1, as on Windows and macOS.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # If `serve run` is killed, nothing restarts the head of the cluster; its other processes end
    # after this time (60 s by default).
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
}
_TOKEN_VARIABLES = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}


@dataclass(frozen=True)
class DrainState:
    """What a stopping application still waits for."""

    num_requests: int | None
    """Requests in progress; None while the proxy has not reported a number."""
    are_runs_paused: bool

    @property
    def is_done(self) -> bool:
        """Whether every request is finished and no run computes."""
        return self.num_requests == 0 and self.are_runs_paused


def build_command(deploy: Path, python: Path = Path(sys.executable)) -> list[str]:
    """Build the command that serves a deploy file from the folder that it is in."""
    return [str(python), "-m", "apps.server.serve_command", "run", str(deploy)]


def build_environment(python: Path = Path(sys.executable)) -> dict[str, str]:
    """Build the environment of `serve run`; variables that the user has set take precedence."""
    # Finds the environment's own `serve` and `ninja`, whether it is activated or not.
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    cluster = {} if preflight.joins_cluster() else _OWN_CLUSTER
    return {**RAY_SETTINGS, **cluster, **os.environ, "PATH": path}


def keep_token_private() -> None:
    """Make Ray's token a file that only its owner can read; Ray leaves that to the umask.

    A token that the user has named is left unchanged.
    """
    if not _TOKEN_VARIABLES.isdisjoint(os.environ):
        return
    token = Path.home() / ".ray" / "auth_token"
    token.parent.mkdir(parents=True, exist_ok=True)
    token.touch(mode=0o600)
    token.chmod(0o600)
    if not token.stat().st_size:
        token.write_text(secrets.token_hex(32))


def start_server(command: Sequence[str], **environment: str) -> "subprocess.Popen[bytes]":
    """Start `serve run` with its output in a pipe.

    The kernel sends it SIGTERM if this process is killed, so that no cluster is orphaned.
    """
    return subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**build_environment(), **environment},
        start_new_session=True,  # this process handles Ctrl-C: `serve run` may ignore it
        preexec_fn=_build_parent_death_hook(),
    )


def stop_server(
    server: "subprocess.Popen[bytes]",
    timeout_s: float = STOP_TIMEOUT_S,
    *,
    is_urgent: Callable[[], bool] = lambda: False,
) -> None:
    """Stop `serve run` and with it the whole application; kill processes that outlive it.

    It has `timeout_s` seconds to end, and only `URGENT_TIMEOUT_S` once `is_urgent` returns True.
    """
    family: list[psutil.Process] = []
    if server.poll() is None:
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(server.pid).children(recursive=True)
        server.terminate()
        started = time.monotonic()
        while server.poll() is None:
            limit_s = min(timeout_s, URGENT_TIMEOUT_S) if is_urgent() else timeout_s
            if time.monotonic() - started > limit_s:
                server.kill()
                server.wait()
            else:
                time.sleep(_POLL_S)
    for process in wait_for_ends(family, min(timeout_s, URGENT_TIMEOUT_S)):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def drain_server(
    url: str,
    signal_folder: DrainSignal,
    timeout_s: float,
    *,
    is_over: Callable[[], bool],
) -> DrainState:
    """Refuse new requests, pause fine-tuning jobs, and wait until both are done.

    Waits at most `timeout_s` seconds, and less if `is_over` returns True, because the server has
    ended or the user will not wait. Returns what is left.
    """
    signal_folder.begin()
    deadline = time.monotonic() + timeout_s
    num_requests: int | None = None
    while True:
        num_requests = _count_requests(url, num_requests)
        state = DrainState(num_requests, signal_folder.are_runs_paused)
        if state.is_done or is_over() or time.monotonic() > deadline:
            return state
        time.sleep(_POLL_S)


def _count_requests(url: str, last: int | None) -> int | None:
    """Return the number of requests in progress, as the proxy reports it.

    A proxy that accepts no connection has ended and has none; one that does not respond in time is
    busy, so the `last` number stays. A response without a number comes from a proxy that does not
    count, which leaves nothing to wait for.
    """
    try:
        response = httpx.get(f"{url}/healthz", timeout=_HEALTH_TIMEOUT_S)
    except httpx.ConnectError:
        return 0
    except httpx.HTTPError:
        return last
    with suppress(ValueError, AttributeError):
        return int(response.json().get("requests_in_progress", 0))
    return 0


def _build_parent_death_hook() -> Callable[[], None] | None:
    """Build the function that a child calls before it starts; None unless on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)  # loaded here, since loading after a fork may deadlock
    parent = os.getpid()

    def follow_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent was killed before the call
            os._exit(1)

    return follow_parent
