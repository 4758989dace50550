"""An engine's core in a separate process, so that it does not compete for this process's GIL.

A fork server, which has imported the libraries that take seconds to import, forks a new process for
each model (`serving.engine.worker`), and for each inspection of a model before it is loaded.
"""

import os
import pickle
import select
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue

from serving.engine.messages import (
    AdapterLoading,
    AdapterUnloading,
    Cancellation,
    Command,
    Generation,
    Inspection,
    ModelFacts,
    ReportHandler,
    Scoring,
)
from serving.errors import EngineDeadError, EngineLostError
from serving.loading.model_memory import ModelMemory
from serving.settings import EngineSettings
from system.fork_server import ForkError, ForkServer

_INSPECTION_TIMEOUT_S = 120.0


class RemoteCore:
    """An `EngineCore` in another process; calls `handle_report` from a thread of this process.

    The constructor blocks until the model is loaded; it raises `EngineDeadError` if the model does
    not load, and `EngineLostError` if the process ends before. Other methods except `close` never
    block, even if the process hangs.
    """

    def __init__(self, path: Path, settings: EngineSettings, handle_report: ReportHandler) -> None:
        self._handle_report = handle_report
        self._connection, there = Pipe()
        self._process: int | None = None  # a pidfd
        try:
            with there:
                self._process = _fork(there)
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
        """Return whether the process is alive and accepts requests."""
        return self._is_alive

    def generate(self, command: Generation) -> None:
        """Start to generate; raises `EngineDeadError` if the process has ended."""
        self._send(command)

    def score(self, command: Scoring) -> None:
        """Start to score a text; raises `EngineDeadError` if the process has ended."""
        self._send(command)

    def load_adapter(self, command: AdapterLoading) -> None:
        """Start to load an adapter; raises `EngineDeadError` if the process has ended."""
        self._send(command)

    def unload_adapter(self, command: AdapterUnloading) -> None:
        """Free the memory of an adapter that no request uses, if the process is alive."""
        with suppress(EngineDeadError):
            self._send(command)

    def cancel(self, request_id: str) -> None:
        """Cancel a request of any kind; reports already in transit may still arrive."""
        with suppress(EngineDeadError):
            self._send(Cancellation(request_id))

    def close(self) -> None:
        """End the process; block until its memory is free."""
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
        # If the process ends after this check, all waiting requests are informed by `_read`.
        self._commands.put(pickle.dumps(command))

    def _write(self) -> None:
        """Send commands in a thread, so that a process that does not read never blocks callers."""
        with suppress(OSError):  # the process has ended; `_read` handles that
            while (command := self._commands.get()) is not None:
                self._connection.send_bytes(command)

    def _read(self) -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    self._handle_report(self._connection.recv())
        finally:
            self._is_alive = False
            self._handle_report(None)
            self._commands.put(None)
            self._writing.join()
            self._connection.close()


fork_server = ForkServer("serving.engine.worker")


def _fork(connection: Connection) -> int:
    """Fork a process for the other end of a connection; return its pidfd.

    A pidfd, since process ids are reused. Raises `EngineLostError`.
    """
    try:
        return fork_server.fork(connection.fileno())
    except ForkError as exc:
        raise EngineLostError(
            "no process could be started for an engine; the log has the cause"
        ) from exc


def inspect_in_fork(path: Path, *, timeout_s: float = _INSPECTION_TIMEOUT_S) -> ModelMemory:
    """Return the memory that a model needs when loaded; block until it is known.

    A fork of the fork server inspects the model, in about 0.1 s. This covers models that the import
    check has not seen: models of earlier releases, and files that changed since.

    Raises `EngineDeadError` if the model cannot be loaded or its inspection takes longer than
    `timeout_s`, and `EngineLostError` if the inspecting process ends.
    """
    connection, there = Pipe()
    with connection:
        with there:
            process = _fork(there)
        try:
            connection.send(Inspection(path))
            if not connection.poll(timeout_s):
                raise EngineDeadError(
                    f"model {path.name!r} cannot be loaded: inspecting it took longer than "
                    f"{timeout_s:g} s"
                )
            found: ModelMemory | EngineDeadError = connection.recv()
        except (EOFError, OSError) as exc:
            raise EngineLostError(
                f"the process that was to inspect model {path.name!r} has ended"
            ) from exc
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
    if isinstance(found, EngineDeadError):
        raise found
    return found
