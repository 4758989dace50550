"""The process that merges an adapter into its base model, with limits on memory and time."""

import logging
import os
import subprocess
import sys
from pathlib import Path

from apps.errors import FULL_DISK, ApiError
from serving.store.stored_model import StoredModel
from system.child_environment import build_child_environment
from system.free_resources import measure_host_memory
from training.preflight.merge_needs import (
    NO_DISK_STATUS,
    NO_MEMORY_STATUS,
    estimate_merge_memory,
    find_merge_timeout,
)

logger = logging.getLogger(__name__)

_MAX_REASON_CHARACTERS = 1_000


def check_merge_memory(adapter: StoredModel, base: StoredModel) -> int:
    """Return the bytes of memory that a merge needs; raises `ApiError` 507 if fewer are free."""
    try:
        needed = estimate_merge_memory(adapter.path, base.path)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise _refuse(409, adapter, f"its files or those of {base.id!r}: {reason}") from exc
    if needed > (free := measure_host_memory().free):
        raise _refuse(
            507,
            adapter,
            f"merging needs about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are "
            "free; try again when the server has less to do, or merge a copy elsewhere with "
            "'python -m training.export.merge'",
            "out_of_memory",
        )
    return needed


def run_merge(
    adapter: StoredModel, base: StoredModel, output: Path, lock_descriptor: int, root: Path
) -> None:
    """Write the base model with an adapter merged into it to `output`, in a process of its own.

    The process is killed if this one ends, and after a time that no merge of this size takes. It
    inherits the lock of the folder that it writes to. Messages do not have the path of the storage
    `root`. Raises `ApiError` 409 if the adapter cannot be merged, 507 if memory or disk are full,
    504 if it took too long, and 500 if its process broke off.
    """
    timeout_s = find_merge_timeout(check_merge_memory(adapter, base))
    command = [sys.executable, "-m", "training.export.merge", "--parent", str(os.getpid())]
    paths = map(str, (adapter.path, base.path, output))
    try:
        ended = subprocess.run(  # noqa: S603 - our own command
            [*command, "--discard-rejected", *paths],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout_s,
            pass_fds=(lock_descriptor,),
            env=build_child_environment(
                {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
            ),
        )
    except subprocess.TimeoutExpired:
        reason = f"it took longer than {timeout_s:,.0f} s and was ended; the machine may be busy"
        raise _refuse(504, adapter, reason, "merge_timeout") from None
    if ended.returncode != 0:
        logger.error("adapter %s was not merged: %s", adapter.id, ended.stderr)
        raise _explain_failure(adapter, ended, root)


def _explain_failure(
    adapter: StoredModel, ended: "subprocess.CompletedProcess[str]", root: Path
) -> ApiError:
    status = ended.returncode
    if status == NO_DISK_STATUS:
        return _refuse(507, adapter, FULL_DISK, "disk_full")
    if status == NO_MEMORY_STATUS or status == -9:  # killed by the system
        reason = "memory ran out; try again when the server has less to do"
        return _refuse(507, adapter, reason, "out_of_memory")
    lines = [line for line in ended.stderr.splitlines() if line.startswith("failed: ")]
    if status == 1 and lines:
        reason = lines[-1].removeprefix("failed: ").replace(str(root), "<storage>")
        return _refuse(409, adapter, reason[:_MAX_REASON_CHARACTERS])
    reason = f"its process ended with status {status}; the server's log has more"
    return _refuse(500, adapter, reason)


def _refuse(status: int, adapter: StoredModel, reason: str, code: str = "merge_failed") -> ApiError:
    message = f"adapter {adapter.id!r} was not merged: {reason}"
    return ApiError(status, message, param="model", code=code)
