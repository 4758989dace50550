"""An engine's core in a process of its own, so that nothing takes Python's lock from it.

A fork server, which has imported all that takes seconds to import, becomes a new process for every
model. What it runs ends with the process that it answers to, and with the thread that generates.
"""

import gc
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue

from transformers.utils import logging as transformers_logging

from serving.engine_core import (
    EngineCore,
    Generation,
    LoadedWeights,
    ModelFacts,
    Progress,
    Report,
    Scoring,
    Tell,
    read_model,
)
from serving.errors import EngineDeadError, EngineLostError
from serving.own_thread import put_thread_last
from serving.settings import EngineSettings

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_PID_BYTES = 8
_NUM_TRIES = 2


@dataclass(frozen=True)
class Cancellation:
    """A wish that a request of any kind end."""

    request_id: str


Command = Generation | Scoring | Cancellation


class RemoteCore:
    """An `EngineCore` in another process; tells from a thread of this one.

    Blocks until the model is loaded; raises `EngineDeadError` if it does not load, and
    `EngineLostError` if the process ends before. No other method but `close` blocks, whatever the
    process does.
    """

    def __init__(self, path: Path, settings: EngineSettings, tell: Tell) -> None:
        self._tell = tell
        self._connection, there = Pipe()
        self._process: int | None = None  # a file descriptor: ids are given again
        try:
            with there:
                self._process = os.pidfd_open(fork_server.fork(there))
            self._connection.send((path, settings))
            found: ModelFacts | EngineDeadError = self._connection.recv()
        except (EOFError, OSError):
            found = EngineLostError(f"the process that was to load model {path.name!r} has ended")
        except EngineDeadError as exc:
            found = exc
        if isinstance(found, EngineDeadError):
            self._end_process()
            self._connection.close()
            raise found
        self.facts = found
        self._is_alive = True
        self._commands: SimpleQueue[bytes | None] = SimpleQueue()
        self._writing = threading.Thread(target=self._write, name="engine-commands", daemon=True)
        self._writing.start()
        threading.Thread(target=self._read, name="engine-reports", daemon=True).start()

    def is_alive(self) -> bool:
        """Tell whether the process is there and takes requests."""
        return self._is_alive

    def generate(self, asked: Generation) -> None:
        """Begin to generate; raises `EngineDeadError` if the process has ended."""
        self._send(asked)

    def score(self, asked: Scoring) -> None:
        """Begin to tell how likely a text is; raises `EngineDeadError` if the process has ended."""
        self._send(asked)

    def cancel(self, request_id: str) -> None:
        """End a request of any kind; little more is told of it."""
        with suppress(EngineDeadError):
            self._send(Cancellation(request_id))

    def close(self) -> None:
        """End the process; blocks until its memory is free."""
        self._is_alive = False
        self._end_process()

    def _end_process(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            ended = select.poll()
            ended.register(process, select.POLLIN)
            ended.poll()
        finally:
            os.close(process)

    def _send(self, command: Command) -> None:
        if not self._is_alive:
            raise EngineDeadError("the model's engine has stopped")
        # What ends between this look and the next line is told to all that wait.
        self._commands.put(pickle.dumps(command))

    def _write(self) -> None:
        """Send commands: a process that is held up does not read, and must hold up nobody here."""
        with suppress(OSError):  # it has ended, as whoever reads will see
            while (command := self._commands.get()) is not None:
                self._connection.send_bytes(command)

    def _read(self) -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    self._tell(self._connection.recv())
        finally:
            self._is_alive = False
            self._tell(None)
            self._commands.put(None)
            self._writing.join()
            self._connection.close()


class ForkServer:
    """A process that has imported what engines need, and forks one for every model."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start it, unless it runs; returns before it is ready."""
        with self._lock:
            self._start()

    def fork(self, connection: Connection) -> int:
        """Have a new process serve what is at the other end of a connection; returns its id.

        Raises `EngineLostError` if there is none.
        """
        with self._lock:
            for _ in range(_NUM_TRIES):
                control = self._start()
                with suppress(OSError):
                    socket.send_fds(control, [b"\0"], [connection.fileno()])
                    if answer := control.recv(_PID_BYTES):
                        return int.from_bytes(answer, "little")
                self._discard()  # it may have ended though nobody can see that yet
        raise EngineLostError("no process could be started for an engine; the log says why")

    def _start(self) -> socket.socket:
        if self._control is None:
            control, there = socket.socketpair()
            with there:
                self._process = subprocess.Popen(  # noqa: S603 - our own command
                    [sys.executable, "-m", "serving.engine_process", str(there.fileno())],
                    pass_fds=[there.fileno()],
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


fork_server = ForkServer()


def serve_forks(control: socket.socket) -> None:
    """Fork for every connection that comes, until nobody is left to send one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us says when to end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who have ended
    # Whoever collects garbage writes to all objects that are not frozen, and so gets copies of the
    # memory that all share.
    gc.collect()
    gc.freeze()
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _run_engine(Connection(descriptors[0]))
        os.close(descriptors[0])
        control.sendall(pid.to_bytes(_PID_BYTES, "little"))


def _run_engine(connection: Connection) -> None:
    """Be an engine's core for the other end; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _serve_engine(connection)
        code = 0
    except (EOFError, BrokenPipeError):  # the other end has gone
        code = 0
    except BaseException:
        logger.exception("an engine's process failed")
    finally:
        os._exit(code)  # whatever threads are at


def _serve_engine(connection: Connection) -> None:
    sending = threading.Lock()

    def tell(report: Report | None) -> None:
        with sending:
            connection.send(report)

    path, settings = connection.recv()
    try:
        thread = ThreadPoolExecutor(max_workers=1)
        loading = thread.submit(_read_model_last, path, settings)
        thread.shutdown(wait=False)
        while not wait([loading], _POLL_S).done:
            if connection.poll():  # nobody sends anything before it is loaded
                raise EOFError
        loaded = loading.result()
        core = EngineCore(loaded, settings, tell)
    except EngineDeadError as exc:
        connection.send(exc)
        return
    del loading, loaded
    connection.send(core.facts)
    while core.is_alive():
        if connection.poll(_POLL_S):
            command = connection.recv()
            try:
                _obey(core, command)
            except EngineDeadError:
                raise
            except Exception as exc:  # the others have nothing to do with it
                logger.exception("a request failed before it was under way")
                core.cancel(command.request_id)
                tell(Report([Progress(command.request_id, (), (), True, str(exc))]))


def _read_model_last(path: Path, settings: EngineSettings) -> LoadedWeights:
    put_thread_last()  # who gets answers from other models meanwhile should not notice
    return read_model(path, settings)


def _obey(core: EngineCore, command: Command) -> None:
    if isinstance(command, Generation):
        core.generate(command)
    elif isinstance(command, Scoring):
        core.score(command)
    else:
        core.cancel(command.request_id)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    transformers_logging.disable_progress_bar()
    serve_forks(socket.socket(fileno=int(sys.argv[1])))
