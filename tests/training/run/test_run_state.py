"""The state machine of a run, compared with a table of expected transitions."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from training.run import run_state
from training.run.folder import RunFolder
from training.run.run_record import (
    FINAL_STATUSES,
    Extension,
    RunError,
    RunRecord,
    RunStatus,
    Writer,
)
from training.run.run_state import TRANSITIONS, Operation, RunTransitionError
from training.spec import TrainingSpec

ROOT = Path(__file__).parents[3]
SPEC = TrainingSpec(base_model="tiny", train_file="rows.jsonl")
ERROR = RunError(code="OSError", message="no space left")
END = Extension(epochs=3, step=6, model_id=None, ended_at=5)

# By previous status: the status after each operation, or None if it is not allowed.
EXPECTED: dict[RunStatus, dict[Operation, RunStatus | None]] = {
    "validating_files": {
        "accept_files": "queued",
        "assign_job": None,
        "start": None,
        "pause": "paused",
        "resume": None,
        "validate_again": None,
        "requeue": None,
        "succeed": "succeeded",
        "fail": "failed",
        "cancel": "cancelled",
        "reopen": None,
        "extend": None,
    },
    "queued": {
        "accept_files": None,
        "assign_job": "queued",
        "start": "running",
        "pause": "paused",
        "resume": None,
        "validate_again": None,
        "requeue": "queued",
        "succeed": "succeeded",
        "fail": "failed",
        "cancel": "cancelled",
        "reopen": "queued",
        "extend": None,
    },
    "running": {
        "accept_files": None,
        "assign_job": "queued",
        "start": "running",
        "pause": "paused",
        "resume": None,
        "validate_again": None,
        "requeue": "queued",
        "succeed": "succeeded",
        "fail": "failed",
        "cancel": "cancelled",
        "reopen": "queued",
        "extend": None,
    },
    "paused": {
        "accept_files": None,
        "assign_job": None,
        "start": "running",
        "pause": "paused",
        "resume": "queued",
        "validate_again": "validating_files",
        "requeue": None,
        "succeed": "succeeded",
        "fail": "failed",
        "cancel": "cancelled",
        "reopen": "queued",
        "extend": None,
    },
    "succeeded": {
        "accept_files": None,
        "assign_job": None,
        "start": None,
        "pause": None,
        "resume": None,
        "validate_again": None,
        "requeue": None,
        "succeed": None,
        "fail": None,
        "cancel": None,
        "reopen": None,
        "extend": "queued",
    },
    "failed": {
        "accept_files": None,
        "assign_job": None,
        "start": None,
        "pause": None,
        "resume": "queued",
        "validate_again": "validating_files",
        "requeue": None,
        "succeed": None,
        "fail": None,
        "cancel": None,
        "reopen": "queued",
        "extend": None,
    },
    "cancelled": {
        "accept_files": None,
        "assign_job": None,
        "start": None,
        "pause": None,
        "resume": "queued",
        "validate_again": "validating_files",
        "requeue": None,
        "succeed": None,
        "fail": None,
        "cancel": None,
        "reopen": "queued",
        "extend": None,
    },
}

# Id, operation, new writer (None if unchanged), and the call that performs the operation.
Call = tuple[str, Operation, Writer | None, Callable[[RunFolder], RunRecord]]
CALLS: list[Call] = [
    ("accept_files", "accept_files", None, run_state.accept_files),
    ("assign_job", "assign_job", "job", run_state.assign_job),
    ("start", "start", None, run_state.start),
    ("pause", "pause", None, run_state.pause),
    ("pause lost", "pause", "queue", lambda run: run_state.pause(run, writer="queue")),
    ("pause full", "pause", None, lambda run: run_state.pause_on_full_disk(run, "room", 5, 3)),
    ("resume", "resume", "queue", lambda run: run_state.resume(add_rows(run))),
    ("validate_again", "validate_again", "queue", run_state.resume),
    ("requeue", "requeue", "queue", lambda run: run_state.requeue(run, num_lost=1, lost_step=2)),
    ("succeed", "succeed", None, lambda run: run_state.succeed(run, "model-1")),
    ("fail", "fail", None, lambda run: run_state.fail(run, ERROR)),
    ("cancel", "cancel", None, run_state.cancel),
    ("fail in queue", "fail", "queue", lambda run: run_state.end_in_queue(run, ERROR, "file-1")),
    ("cancel in queue", "cancel", "queue", lambda run: run_state.end_in_queue(run, None, None)),
    ("reopen", "reopen", None, run_state.reopen),
    ("extend", "extend", None, lambda run: run_state.extend(run, END)),
]
STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


def add_rows(run: RunFolder) -> RunFolder:
    run.data.mkdir()
    (run.data / "summary.json").write_text("{}")
    return run


def build_run(path: Path, status: RunStatus, writer: Writer = "") -> RunFolder:
    run = RunFolder(path)
    record = RunRecord(id="run", created_at=1, status=status, writer=writer, num_starts=4)
    run.create(SPEC, record)
    return run


def test_transitions_match_expected_table() -> None:
    found = {
        status: {
            operation: TRANSITIONS[operation].target
            if status in TRANSITIONS[operation].sources
            else None
            for operation in OPERATIONS
        }
        for status in STATUSES
    }
    assert found == EXPECTED
    assert {operation for _, operation, _, _ in CALLS} == set(OPERATIONS) == set(TRANSITIONS)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_operation_sets_status_or_is_refused(tmp_path: Path, status: RunStatus, call: Call) -> None:
    _, operation, writer, change = call
    run = build_run(tmp_path / "run", status)
    expected = EXPECTED[status][operation]
    if expected is None:
        before = run.record_file.read_bytes()
        message = f"^run 'run' has the status '{status}', and the operation '{operation}' expects"
        with pytest.raises(RunTransitionError, match=message):
            change(run)
        assert run.record_file.read_bytes() == before
        return
    returned = change(run)
    record = run.read_record()
    assert record == returned
    assert record.status == expected
    assert record.writer == (writer or "")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
@pytest.mark.parametrize("writer", ["queue", "job"])
def test_operation_changes_writer_only_as_listed(
    tmp_path: Path, call: Call, writer: Writer
) -> None:
    _, operation, expected, change = call
    status = next(status for status in STATUSES if EXPECTED[status][operation])
    run = build_run(tmp_path / "run", status, writer)
    assert change(run).writer == (expected or writer)


def test_transition_error_does_not_look_like_client_error() -> None:
    assert not issubclass(RunTransitionError, ValueError | RuntimeError | OSError)


def test_assigned_job_has_next_number(tmp_path: Path) -> None:
    record = run_state.assign_job(build_run(tmp_path, "queued", "queue"))
    assert (record.writer, record.job_id, record.num_starts) == ("job", "run-5", 5)


def test_reason_for_waiting_is_that_of_the_last_operation(tmp_path: Path) -> None:
    found = {}
    for call, operation, _, change in CALLS:
        if EXPECTED["queued"][operation] is None:
            continue
        run = build_run(tmp_path / call, "queued", "job")
        run.update_record(waiting_for="number 1 in the queue")
        found[call] = change(run).waiting_for
    others = {call for call, reason in found.items() if reason is None}
    assert found.pop("assign_job") == "its process is being started"
    assert found.pop("pause full") == "room"
    assert others == {
        *("start", "pause", "pause lost", "requeue", "succeed", "fail", "cancel", "reopen"),
        *("fail in queue", "cancel in queue"),
    }


def test_first_start_time_is_kept(tmp_path: Path) -> None:
    run = build_run(tmp_path, "queued")
    run.update_record(started_at=7, waiting_for="room", pause_reason="user", needed_bytes=9)
    record = run_state.start(run)
    assert record.started_at == 7
    assert record.computing_since is not None
    assert (record.waiting_for, record.pause_reason, record.needed_bytes) == (None, None, None)


@pytest.mark.parametrize("reason", ["user", "shutdown"])
def test_pause_records_its_reason(tmp_path: Path, reason: str) -> None:
    run = build_run(tmp_path, "running")
    run.request_pause("shutdown" if reason == "shutdown" else "user")
    assert run_state.pause(run).pause_reason == reason


def test_resumed_run_clears_its_end(tmp_path: Path) -> None:
    run = build_run(tmp_path, "running")
    run_state.end_in_queue(run, ERROR, "file-1")
    ended = run.read_record()
    assert (ended.error, ended.result_file) == (ERROR, "file-1")
    assert ended.finished_at is not None
    record = run_state.resume(add_rows(run))
    assert (record.error, record.result_file, record.finished_at) == (None, None, None)


def test_extensions_are_listed_oldest_first(tmp_path: Path) -> None:
    run = build_run(tmp_path, "succeeded")
    first = END.model_copy(update={"step": 2})
    run_state.extend(run, first)
    run_state.succeed(run, None)
    assert run_state.extend(run, END).extends == (first, END)


def test_final_status_changes_only_by_resume_or_extension() -> None:
    leaving = {
        operation
        for operation, transition in TRANSITIONS.items()
        if transition.sources & FINAL_STATUSES
    }
    assert leaving == {"resume", "validate_again", "reopen", "extend"}


def find_status_changes(source: str) -> list[int]:
    """Return the lines of calls of `update_record` that may change the status."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "update_record"
        and any(keyword.arg in (None, "status", "writer") for keyword in node.keywords)
    ]


def test_no_other_module_changes_status() -> None:
    assert find_status_changes("run.update_record(status='queued')") == [1]
    assert find_status_changes("run.update_record(**changes)") == [1]
    assert find_status_changes("run.update_record(waiting_for=None)") == []
    wrong = {
        str(path.relative_to(ROOT)): lines
        for folder in ("apps", "serving", "storage", "training", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "run_state.py" and (lines := find_status_changes(path.read_text()))
    }
    assert wrong == {}
