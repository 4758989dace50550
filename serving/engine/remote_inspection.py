"""Inspection of a published model in a fork of the fork server, before the model is loaded.

The fork server has already imported transformers, so this takes about 0.1 s. It covers models that
the import check has not seen: models of earlier releases, and files that changed since.
"""

import os
import signal
from contextlib import suppress
from multiprocessing.connection import Pipe
from pathlib import Path

from serving.engine.messages import Inspection
from serving.engine.remote import fork_server
from serving.errors import EngineDeadError, EngineLostError
from serving.loading.model_memory import ModelMemory

_TIMEOUT_S = 120.0


def inspect_in_fork(path: Path, *, timeout_s: float = _TIMEOUT_S) -> ModelMemory:
    """Return the memory that a model needs when loaded; block until it is known.

    Raises `EngineDeadError` if the model cannot be loaded or its inspection takes longer than
    `timeout_s`, and `EngineLostError` if the inspecting process ends.
    """
    connection, there = Pipe()
    with connection:
        with there:
            process = os.pidfd_open(fork_server.fork(there))
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
