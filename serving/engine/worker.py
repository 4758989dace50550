"""The peer of `serving.engine.remote`: `python -m serving.engine.worker` forks a process for each.

A forked process ends when its client process ends and when its generating thread ends.
"""

import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from transformers.utils import logging as transformers_logging

from serving.engine.core import EngineCore, LoadedWeights, read_model
from serving.engine.messages import (
    AdapterLoading,
    AdapterUnloading,
    Command,
    Generation,
    Inspection,
    Progress,
    Report,
    Scoring,
)
from serving.errors import EngineDeadError
from serving.loading.inspection import inspect_directory
from serving.loading.model_memory import ModelMemory
from serving.settings import EngineSettings
from system.fork_server import serve_forks
from system.priority import lower_thread_priority
from system.process_limits import MAX_CPU_S, limit_cpu, limit_memory

logger = logging.getLogger(__name__)

_POLL_S = 1.0


def _run_engine(descriptor: int) -> NoReturn:
    """Run an engine's core for the client at the other end of a connection."""
    code = 1
    try:
        _serve_engine(Connection(descriptor))
        code = 0
    except (EOFError, BrokenPipeError):  # the client has closed the connection
        code = 0
    except BaseException:
        logger.exception("an engine's process failed")
    finally:
        os._exit(code)  # without waiting for threads


def _serve_engine(connection: Connection) -> None:
    sending = threading.Lock()

    def send_report(report: Report | None) -> None:
        with sending:
            connection.send(report)

    command = connection.recv()
    if isinstance(command, Inspection):
        connection.send(_inspect(command.path))
        return
    path, settings = command
    try:
        thread = ThreadPoolExecutor(max_workers=1)
        loading = thread.submit(_read_model_last, path, settings)
        thread.shutdown(wait=False)
        while not wait([loading], _POLL_S).done:
            if connection.poll():  # clients send nothing before the model is loaded: this is EOF
                raise EOFError
        loaded = loading.result()
        core = EngineCore(loaded, settings, send_report)
    except EngineDeadError as exc:
        connection.send(exc)
        return
    del loading, loaded
    connection.send(core.facts)
    while core.is_alive():
        if connection.poll(_POLL_S):
            command = connection.recv()
            try:
                _execute(core, command)
            except EngineDeadError:
                raise
            except Exception as exc:  # other requests must not fail with this one
                logger.exception("a request failed before it started")
                if isinstance(command, AdapterUnloading):
                    continue
                core.cancel(command.request_id)
                send_report(Report([Progress(command.request_id, (), (), True, str(exc))]))


def _inspect(path: Path) -> ModelMemory | EngineDeadError:
    """Count the memory of a model; a hostile config may make this process exceed its limits."""
    lower_thread_priority()
    transformers_logging.set_verbosity_error()  # the returned error has the same information
    signal.signal(signal.SIGXCPU, _raise_cpu_limit)
    limit_cpu()
    try:
        weights = path.glob("*.safetensors")
        limit_memory(sum(file.stat().st_size for file in weights))
        return inspect_directory(path)
    except EngineDeadError as exc:
        return exc
    except Exception as exc:  # a damaged or hostile model can make the libraries fail in any way
        logger.warning("model %s cannot be inspected", path.name, exc_info=exc)
        reason = str(exc).replace(str(path), path.name) or type(exc).__name__
        return EngineDeadError(f"model {path.name!r} cannot be loaded: {reason}")


def _raise_cpu_limit(*_: object) -> None:
    raise EngineDeadError(
        "the model is refused: its config or its tokenizer makes building it take more than "
        f"{MAX_CPU_S} s"
    )


def _read_model_last(path: Path, settings: EngineSettings) -> LoadedWeights:
    lower_thread_priority()  # loading should not slow down the serving of other models
    return read_model(path, settings)


def _execute(core: EngineCore, command: Command) -> None:
    if isinstance(command, Generation):
        core.generate(command)
    elif isinstance(command, Scoring):
        core.score(command)
    elif isinstance(command, AdapterLoading):
        core.load_adapter(command)
    elif isinstance(command, AdapterUnloading):
        core.unload_adapter(command)
    else:
        core.cancel(command.request_id)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    transformers_logging.disable_progress_bar()
    serve_forks(_run_engine)
