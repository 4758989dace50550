"""The process of a transfer from or to the hub: started, followed and ended by a thread."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any, NamedTuple

from apps.errors import ApiError
from apps.hub.hub_process import ListedModel
from apps.hub.redaction import redact
from storage.scratch import ScratchFolder
from system.child_environment import build_child_environment

logger = logging.getLogger(__name__)

TICK_S = 1.0
_LOG_NAME = ".log"  # no id of a model, whose folder is beside it
_MAX_LOG_CHARACTERS = 4_000
_END = None
_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # The backend Xet keeps parts of files in a cache outside the scratch folder, where they are
    # neither counted nor removed, and it does not use the client of `apps.hub.hub_client`.
    "HF_HUB_DISABLE_XET": "1",
    "OMP_NUM_THREADS": "1",
}


class CancelledTransferError(Exception):
    """The cancellation of a transfer was requested."""


class TransferEvents(NamedTuple):
    """What a transfer calls while its process works; each may raise to end the process."""

    tick: Callable[[], None]
    listed: Callable[[ListedModel], None] = lambda _: None
    target: Callable[[str], None] = lambda _: None
    sent: Callable[[int], None] = lambda _: None
    sending: Callable[[], None] = lambda: None


def run_transfer(
    arguments: Sequence[str], scratch: ScratchFolder, events: TransferEvents
) -> str | None:
    """Make a transfer in a process of its own; return the address of a pushed model.

    `arguments` are those of `apps.hub.hub_process`. The process is killed if this thread ends or an
    event raises. It inherits the lock of the scratch folder. Raises `ApiError` with the reason if
    the transfer failed.
    """
    log = scratch.path / _LOG_NAME
    with _start(arguments, scratch, log) as (process, lines):
        while True:
            try:
                line = lines.get(timeout=TICK_S)
            except Empty:
                events.tick()
                continue
            if line is _END:
                break
            message = json.loads(line)
            if "listed" in message:
                events.listed(message["listed"])
                _let_continue(process)
            elif "target" in message:
                events.target(message["target"])
                _let_continue(process)
            elif "sending" in message:
                events.sending()
            elif "sent_bytes" in message:
                events.sent(message["sent_bytes"])
            elif "failed" in message:
                failed = message["failed"]
                if failed["status"] == 500:
                    logger.error("a transfer of the hub failed: %s", _read_log(log))
                raise ApiError(failed["status"], failed["message"], code=failed["code"])
            elif "done" in message:
                url: str | None = message["done"]["url"]
                return url
        status = process.wait()
    logger.error("the process of a transfer ended with status %s: %s", status, _read_log(log))
    reason = f"the process of the transfer ended with status {status}; try again"
    raise ApiError(500, reason, code="transfer_failed")


@contextmanager
def _start(
    arguments: Sequence[str], scratch: ScratchFolder, log: Path
) -> Iterator[tuple["subprocess.Popen[str]", "Queue[str | None]"]]:
    """Start the process; yield it with the lines that it prints, and kill it at the end."""
    command = [sys.executable, "-m", "apps.hub.hub_process", "--parent", str(os.getpid())]
    with (
        log.open("w") as errors,
        subprocess.Popen(  # noqa: S603 - our own command
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            pass_fds=(scratch.lock_descriptor,),
            env=build_child_environment(_VARIABLES),  # the server's has the token
        ) as process,
    ):
        lines: Queue[str | None] = Queue()
        reader = threading.Thread(target=_read_lines, args=(process, lines), daemon=True)
        reader.start()
        try:
            yield process, lines
        finally:
            process.kill()
            reader.join()


def _read_lines(process: "subprocess.Popen[str]", lines: "Queue[Any]") -> None:
    """Put each line of a process into a queue, and `_END` after the last; the body of a thread."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(_END)


def _let_continue(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, and the end of its output follows
        # Unbuffered: what is left in a buffer would raise again when the pipe is closed.
        os.write(process.stdin.fileno(), b"go\n")


def _read_log(log: Path) -> str:
    return redact(log.read_text(errors="replace"))[-_MAX_LOG_CHARACTERS:]
