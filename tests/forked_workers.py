"""Ray's workers as forks of a process that has imported what training needs, for faster tests.

The workers of a training import torch, transformers and DeepSpeed: a third of the processor time
that a short one takes. In tests `worker_launcher.py` starts them, which has this server fork them.
`tests/e2e/test_recovery.py` and `tests/faults/`, among others, start them as users do.
"""

import atexit
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

import pytest

from system.fork_server import ForkServer, serve_forks
from tests import worker_launcher
from tests.worker_launcher import LENGTH_BYTES, SOCKET_VARIABLE

ROOT = Path(__file__).parent.parent
_THREADS = {"jemalloc_bg_thd"}  # of Arrow's allocator, which starts it again in a fork
_MODULES = [
    "pandas",
    "pyarrow.parquet",
    "training.checkpoint.reference_logits",
    "training.checkpoint.writer",
    "training.evaluation",
    "training.kernels.row_attention",
    "training.monitoring.trackers",
    "training.strategies.zero",
    "transformers.models.llama.modeling_llama",
]


@pytest.fixture(scope="session")
def worker_server() -> Iterator[str]:
    """Listen for launchers; returns the path of the socket. The first one starts the server."""
    server = ForkServer(__name__)
    with (
        tempfile.TemporaryDirectory(prefix="workers-") as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        address = str(Path(folder) / "socket")
        listener.bind(address)
        listener.listen()
        Thread(target=_fork_for_launchers, args=(listener, server), daemon=True).start()
        yield address
        listener.shutdown(socket.SHUT_RDWR)
    server.close()


def _fork_for_launchers(listener: socket.socket, server: ForkServer) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # it was shut down
            return
        with connection:
            os.close(server.fork(connection.fileno()))


@pytest.fixture(scope="module")
def forked_workers(worker_server: str) -> Iterator[None]:
    """Fork the workers of all trainings in a module of tests."""
    with fork_workers(worker_server):
        yield


@contextmanager
def fork_workers(address: str) -> Iterator[None]:
    """Fork the workers of all trainings of the processes that are started meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        patch.setenv("PYTHONPATH", path)
        patch.setenv(SOCKET_VARIABLE, address)
        patch.setenv("RAY_RUNTIME_ENV_HOOK", f"{worker_launcher.__name__}.choose_executable")
        yield


def _import_all() -> None:
    """Import what workers do; all of it is for the forks."""
    import torch

    from training.deepspeed.process import import_deepspeed

    import_deepspeed(torch.device("cpu"))
    for name in _MODULES:
        import_module(name)
    # Ray reads settings of a worker, such as its job, from the environment when it is imported.
    assert "ray" not in sys.modules
    threads = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    threads.remove("python")
    assert set(threads) <= _THREADS, f"a fork may hang: there are the threads {threads}"


def _supervise(descriptor: int) -> NoReturn:
    """Fork the worker of a launcher, and report its exit status."""
    connection = socket.socket(fileno=descriptor)
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 3)
    data = connection.recv(int.from_bytes(head), socket.MSG_WAITALL)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become_worker(json.loads(data), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    connection.sendall(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


def _become_worker(request: Mapping[str, Any], descriptors: list[int]) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # fork servers ignore it
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.setpriority(os.PRIO_PROCESS, 0, request["niceness"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["command"]
    added = [str(Path(sys.argv[0]).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:0] = [folder for folder in added if folder not in sys.path]
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:  # noqa: BLE001 - the process ends here, as an interpreter does
        traceback.print_exc()
        status = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _import_all()
    serve_forks(_supervise)
