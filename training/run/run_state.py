"""The state machine of a run: the only module that changes the status in a run's record.

Each function is one operation. It reads the record, compares its status with `TRANSITIONS`, and
replaces the record. It takes no lock: the caller is the writer of the record, and calls it under
the lock under which it has decided.

Clients' requests that a run's status does not allow are refused before, by the queue. So an
operation that the table does not allow is a bug, and raises `RunTransitionError`.
"""

import time
from typing import Any, Literal, NamedTuple, get_args

from training.run.folder import RunFolder
from training.run.run_record import (
    FINAL_STATUSES,
    Extension,
    RunError,
    RunRecord,
    RunStatus,
    Writer,
)

Operation = Literal[
    "accept_files",
    "assign_job",
    "start",
    "pause",
    "resume",
    "validate_again",
    "requeue",
    "succeed",
    "fail",
    "cancel",
    "reopen",
    "extend",
]

_UNFINISHED: frozenset[RunStatus] = frozenset(get_args(RunStatus)) - FINAL_STATUSES
_STOPPED: frozenset[RunStatus] = frozenset({"paused", "failed", "cancelled"})


class Transition(NamedTuple):
    """The statuses in which an operation is allowed, and the status that it sets."""

    sources: frozenset[RunStatus]
    target: RunStatus


TRANSITIONS: dict[Operation, Transition] = {
    # The rows of a job are read.
    "accept_files": Transition(frozenset({"validating_files"}), "queued"),
    # The queue makes a Ray job the writer, and submits it. A run that was queued again is 'running'
    # if its lost process was only delayed and has recorded its start since.
    "assign_job": Transition(frozenset({"queued", "running"}), "queued"),
    # A process computes the run; one of the same Ray job may have died before.
    "start": Transition(frozenset({"queued", "running", "paused"}), "running"),
    # Repeated for a paused run when its user pauses a run that a shutdown had paused.
    "pause": Transition(_UNFINISHED, "paused"),
    "resume": Transition(_STOPPED, "queued"),
    "validate_again": Transition(_STOPPED, "validating_files"),
    # The process of the run was lost.
    "requeue": Transition(frozenset({"queued", "running"}), "queued"),
    # The process may be lost between publishing the model and recording it, and the run be queued
    # or paused then.
    "succeed": Transition(_UNFINISHED, "succeeded"),
    "fail": Transition(_UNFINISHED, "failed"),
    "cancel": Transition(_UNFINISHED, "cancelled"),
    # `python -m training` continues a run, which may have been killed in any of these.
    "reopen": Transition(_STOPPED | {"queued", "running"}, "queued"),
    "extend": Transition(frozenset({"succeeded"}), "queued"),
}


class RunTransitionError(Exception):
    """A bug: an operation was called on a run whose status does not allow it."""


def check_transition(record: RunRecord, operation: Operation) -> RunStatus:
    """Return the status that an operation sets; raise `RunTransitionError` if it is not allowed."""
    sources, target = TRANSITIONS[operation]
    if record.status not in sources:
        raise RunTransitionError(
            f"run {record.id!r} has the status {record.status!r}, and the operation {operation!r} "
            f"expects one of {sorted(sources)}"
        )
    return target


def accept_files(run: RunFolder) -> RunRecord:
    """Queue a run whose files are valid."""
    return _apply(run, "accept_files", waiting_for=None)


def assign_job(run: RunFolder) -> RunRecord:
    """Make the next Ray job of a queued run the writer of its record.

    Its process takes seconds to start, in which the run is still queued.
    """
    record = run.read_record()
    number = record.num_starts + 1
    return _apply(
        run,
        "assign_job",
        writer="job",
        job_id=f"{record.id}-{number}",
        num_starts=number,
        waiting_for="its process is being started",
    )


def start(run: RunFolder) -> RunRecord:
    """Record that the run computes."""
    now = int(time.time())
    return _apply(
        run,
        "start",
        started_at=run.read_record().started_at or now,
        computing_since=now,
        pause_reason=None,
        waiting_for=None,
        needed_bytes=None,
    )


def pause(run: RunFolder, *, writer: Writer | None = None) -> RunRecord:
    """Record that the run has paused, and why; `writer` is the next writer if it changes."""
    return _apply(run, "pause", writer, pause_reason=run.requested_pause_reason, waiting_for=None)


def pause_on_full_disk(run: RunFolder, waiting_for: str, needed_bytes: int, step: int) -> RunRecord:
    """Record that the run has paused at `step` until `needed_bytes` of the disk are free."""
    return _apply(
        run,
        "pause",
        pause_reason=run.requested_pause_reason,
        waiting_for=waiting_for,
        needed_bytes=needed_bytes,
        full_disk_step=step,
    )


def resume(run: RunFolder) -> RunRecord:
    """Queue a run that was paused or has ended; its files are validated if its rows are missing."""
    return _apply(
        run,
        "resume" if run.has_data else "validate_again",
        "queue",
        num_lost=0,
        error=None,
        finished_at=None,
        result_file=None,
        pause_reason=None,
        waiting_for=None,
        needed_bytes=None,
    )


def requeue(run: RunFolder, *, num_lost: int, lost_step: int) -> RunRecord:
    """Queue a run whose process was lost, at its old position."""
    return _apply(run, "requeue", "queue", num_lost=num_lost, lost_step=lost_step, waiting_for=None)


def succeed(run: RunFolder, model_id: str | None) -> RunRecord:
    """Record the success of a run, and the model that it has published."""
    return _apply(run, "succeed", finished_at=int(time.time()), model_id=model_id, waiting_for=None)


def fail(run: RunFolder, error: RunError) -> RunRecord:
    """Record the failure of a run, as the process that computes it."""
    now = int(time.time())
    return _apply(run, "fail", finished_at=now, error=error.model_dump(), waiting_for=None)


def cancel(run: RunFolder) -> RunRecord:
    """Record the cancellation of a run, as the process that computes it."""
    return _apply(run, "cancel", finished_at=int(time.time()), waiting_for=None)


def end_in_queue(run: RunFolder, error: RunError | None, result_file: str | None) -> RunRecord:
    """Record that a run failed with `error`, or was cancelled if it is None, as the queue."""
    return _apply(
        run,
        "fail" if error else "cancel",
        "queue",
        finished_at=int(time.time()),
        waiting_for=None,
        error=error.model_dump() if error else None,
        result_file=result_file,
    )


def reopen(run: RunFolder) -> RunRecord:
    """Queue a run that has not succeeded, for the command that continues it."""
    return _apply(run, "reopen", finished_at=None, error=None, waiting_for=None)


def extend(run: RunFolder, earlier_end: Extension) -> RunRecord:
    """Queue a run that has succeeded, for the command that computes more steps of it."""
    extends = (*run.read_record().extends, earlier_end)
    return _apply(run, "extend", finished_at=None, error=None, extends=extends)


def _apply(
    run: RunFolder, operation: Operation, writer: Writer | None = None, **changes: Any
) -> RunRecord:
    """Check an operation against the table, and replace the record."""
    status = check_transition(run.read_record(), operation)
    if writer is not None:
        changes["writer"] = writer
    return run.update_record(status=status, **changes)
