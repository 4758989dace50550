"""Failures that are retried with new workers, and failures that end a run at once."""

import errno
import pickle
from pathlib import Path

import pytest
import ray.exceptions
import torch
from ray.train.v2._internal.exceptions import (
    UserExceptionWithTraceback,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2._internal.util import construct_user_exception_with_traceback
from ray.train.v2.api.config import FailureConfig
from ray.train.v2.api.exceptions import WorkerGroupError

from training.cluster.retry import ReportFailures, is_full_disk, is_retryable, is_transient
from training.cluster.trainer import RetryTransientFailures
from training.cluster.unwrapping import unwrap_user_exception
from training.model import WeightsError
from training.run.folder import RunBusyError, RunFolder
from training.spec import SettingError

FULL = OSError(errno.ENOSPC, "No space left on device", "/tmp/x")
PEER_LOST = RuntimeError("[pair.cc:534] Connection closed by peer [192.0.2.7]:4711")


def raise_exception(exception: BaseException) -> None:
    raise exception


def wrap(exception: BaseException) -> UserExceptionWithTraceback:
    """Return an exception of a worker in the form in which Ray Train passes it on."""
    try:
        raise_exception(exception)
    except type(exception) as caught:
        wrapped = construct_user_exception_with_traceback(caught)
    return pickle.loads(pickle.dumps(wrapped))  # type: ignore[no-any-return]


def test_unwrap_user_exception_returns_exception_of_worker() -> None:
    found = unwrap_user_exception(wrap(FULL))
    assert isinstance(found, OSError)
    assert found.errno == errno.ENOSPC
    assert unwrap_user_exception(FULL) is FULL


@pytest.mark.parametrize(
    "exception",
    [
        FULL,
        OSError("no file named model.safetensors in directory"),
        FileNotFoundError(errno.ENOENT, "No such file", "x"),
        PermissionError(errno.EACCES, "Permission denied", "x"),
        ValueError("Error while deserializing header: MetadataIncompleteBuffer"),
        SettingError("max_length is too large"),
        WeightsError("the weights do not fit"),
        KeyError("name"),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("CUDA error: device-side assert triggered"),
    ],
)
def test_permanent_failure_is_not_retried(exception: Exception) -> None:
    """Previously, each of them was retried four times, for 103 s."""
    assert not is_transient(wrap(exception))
    assert not is_retryable({0: wrap(exception), 1: wrap(PEER_LOST)})


@pytest.mark.parametrize(
    "exception",
    [
        ray.exceptions.ActorDiedError(),
        ray.exceptions.NodeDiedError("node died"),  # type: ignore[no-untyped-call]
        ray.exceptions.ActorUnavailableError("socket closed", None),
        WorkerHealthCheckTimeoutError("has been hanging"),  # type: ignore[no-untyped-call]
        wrap(PEER_LOST),
        wrap(RuntimeError("NCCL error in: NCCLUtils.hpp: remote process exited")),
        wrap(torch.distributed.DistNetworkError("failed to recv, got 0 bytes; TCPStore")),
        wrap(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")),
        wrap(OSError(errno.ESTALE, "Stale file handle", "x")),
        wrap(OSError(errno.EIO, "Input/output error", "x")),
        wrap(RunBusyError("another process computes run 'r'")),
        wrap(RuntimeError("CUDA error: uncorrectable ECC error encountered")),
    ],
)
def test_transient_failure_is_retried(exception: Exception) -> None:
    assert is_transient(exception)
    assert is_retryable({0: exception})


def test_lost_worker_outweighs_failures_of_other_workers() -> None:
    lost = ray.exceptions.ActorDiedError()
    assert is_retryable({0: wrap(ValueError("expected 2 tensors, got 1")), 1: lost})


def test_failure_policy_decides_by_cause() -> None:
    policy = RetryTransientFailures(FailureConfig(max_failures=2))
    full, lost = WorkerGroupError("", {1: wrap(FULL)}), WorkerGroupError("", {1: wrap(PEER_LOST)})
    assert policy.make_decision(full) is FailureDecision.RAISE
    decisions = [policy.make_decision(lost) for _ in range(3)]
    assert decisions == [FailureDecision.RETRY, FailureDecision.RETRY, FailureDecision.RAISE]
    assert isinstance(pickle.loads(pickle.dumps(policy)), RetryTransientFailures)


def test_only_replaced_workers_emit_event(tmp_path: Path) -> None:
    callback = ReportFailures(str(tmp_path))
    callback.after_exception(None, {0: wrap(PEER_LOST), 3: wrap(FULL)})
    run = RunFolder(tmp_path)
    assert run.events.read() == [], "the event of the run's end has the reason"
    callback.after_exception(None, {0: wrap(PEER_LOST), 3: ray.exceptions.ActorDiedError()})
    (event,) = run.events.read()
    assert event["message"].startswith("Worker 3 was lost: ")
    assert (event["level"], event["code"]) == ("warn", "worker_lost")
    assert event["data"] == {"ranks": [0, 3]}


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        (FULL, True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (
            OSError("a checkpoint could not be written: worker 0: No space left on device"),
            True,
        ),
        (RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (ValueError("no"), False),
    ],
)
def test_is_full_disk_recognises_causes(exception: Exception, expected: bool) -> None:
    assert is_full_disk(exception) is expected
    assert is_full_disk(wrap(exception)) is expected
    chained = RuntimeError("saving failed")
    chained.__cause__ = exception
    assert is_full_disk(chained) is expected
