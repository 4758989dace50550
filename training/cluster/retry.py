"""Classification of worker failures that a retry may fix, and the event for a retry.

A retry may fix a lost worker, node or connection, a transient I/O error, or a fault of one GPU.
Every other exception depends on the settings, the model, the rows or the disk: new workers would
meet it again, a minute later.
"""

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray.exceptions
from ray.train import UserCallback

from system.machine_faults import is_out_of_space
from training.cluster.failure_messages import choose_failure, summarise_exception
from training.cluster.unwrapping import unwrap_user_exception
from training.run.folder import RunBusyError, RunFolder

# What gloo, NCCL and torch's store report when another worker or the network is lost.
_COMMUNICATION = re.compile(
    r"gloo|pair\.cc|nccl|TCPStore|ProcessGroup|rendezvous|Connection (closed|reset) by peer|"
    r"Connection was (likely )?closed|Broken pipe|Socket closed|Timed out waiting",
    re.IGNORECASE,
)
# Faults of one GPU, which another GPU may not have.
_DEVICE = re.compile(
    r"uncorrectable ECC|NVLink|fallen off the bus|unspecified launch failure|"
    r"CUDA error: (unknown error|hardware)|system not yet initialized",
    re.IGNORECASE,
)
_PASSING_ERRORS = frozenset(
    {
        errno.EAGAIN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
_HEALTH_CHECK_ERRORS = ("WorkerHealthCheckTimeoutError", "WorkerHealthCheckFailedError")  # Ray's
# PyTorch reports a full disk under `torch.save` only in the text of its exception.
_FULL_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing file"
)


def is_retryable(failures: Mapping[int, BaseException]) -> bool:
    """Return whether new workers may succeed where these failed; `failures` are by rank.

    If a worker or its node was lost, other reported failures are likely consequences of that.
    """
    if any(_is_lost(failure) for failure in failures.values()):
        return True
    return not failures or is_transient(choose_failure(failures)[1])


def is_transient(exception: BaseException) -> bool:
    """Return whether an exception in a worker may not recur with new workers."""
    if _is_lost(exception):
        return True
    cause = unwrap_user_exception(exception)
    if isinstance(cause, RunBusyError):  # the previous workers have not ended yet
        return True
    if isinstance(cause, ConnectionError | TimeoutError):
        return True
    if isinstance(cause, OSError):
        return cause.errno in _PASSING_ERRORS
    if isinstance(cause, RuntimeError):
        text = str(cause)
        return bool(_COMMUNICATION.search(text) or _DEVICE.search(text))
    return False


def is_full_disk(exception: BaseException) -> bool:
    """Return whether a full disk caused an exception, even if only its text shows that."""
    cause: BaseException | None = unwrap_user_exception(exception)
    while cause is not None:
        if is_out_of_space(cause) or _FULL_DISK.search(str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


class ReportFailures(UserCallback):
    """Writes an event for every failure of workers; Ray Train calls it in its controller."""

    def __init__(self, run: str) -> None:
        self._run = run

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:  # noqa: ARG002 - Ray's name
        """Add an event that names the worker that failed, and the reason."""
        if not is_retryable(worker_exceptions):
            return  # the run fails, and its last event has the reason
        rank, exception = choose_failure(worker_exceptions)
        reason = summarise_exception(exception)
        RunFolder(Path(self._run)).events.add(
            f"Worker {rank} was lost: {reason}",
            level="warn",
            code="worker_lost",
            data={"ranks": sorted(worker_exceptions)},
        )


def _is_lost(exception: BaseException) -> bool:
    """Return whether Ray reports a lost worker or node, not an exception of the training."""
    if isinstance(exception, ray.exceptions.RayTaskError):
        return False
    if isinstance(exception, ray.exceptions.RayError):
        return True
    return type(exception).__name__ in _HEALTH_CHECK_ERRORS
