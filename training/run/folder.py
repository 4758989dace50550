"""The folder of a run, with its record, events, metrics and requests.

The `format_version` in run.json applies to all files of the folder (`storage.versioned_json`).
spec.json has no version of its own: release 0.1 refuses a spec with an unknown key.

spec.json      the resolved spec
run.json       the record: status, times, error, and which process may write it
events.jsonl   the events
metrics.jsonl  one line per optimizer step
evaluations.jsonl  one line per evaluation
heartbeat      a line that changes every few seconds while a process computes the run
cancel         exists once cancellation of the run was requested
pause          exists from a request to pause the run until it resumes; contains 'shutdown' if the
               application paused the run because it was stopping
log.txt        the log; log.<begin>-<end>.txt is its previous part (`training.run.run_log`)
data/          the rows as tokens
ray/           Ray Train's folder with the sharded checkpoints
tensorboard/   the metrics for TensorBoard
exports/       records of the checkpoints that the application is exporting as models
model/         the finished Hugging Face model, until the application publishes it
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from storage import durable, versioned_json
from storage.locks import try_lock
from storage.regular_file import open_regular, read_regular
from training.run.run_evaluations import RunEvaluations
from training.run.run_events import RunEvents
from training.run.run_metrics import RunMetrics
from training.run.run_record import PauseReason, RunRecord, read_run_record
from training.settings.stored_spec import read_stored_spec
from training.spec import TrainingSpec, describe_validation_error

REJECTED_SUFFIX = ".rejected"
"""Suffix of the folder of a model that failed its verification, beside the intended path."""

_LOCK_INTERVAL_S = 0.1
_SPEC_KEYS = TrainingSpec.model_fields.keys()


class RunBusyError(RuntimeError):
    """Another process computes this run."""


class RunFolder:
    """One run's folder: its spec, record and requests; its events and metrics are parts of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec_file = path / "spec.json"
        self.record_file = path / "run.json"
        self.events = RunEvents(path / "events.jsonl", path.name)
        self.metrics = RunMetrics(path / "metrics.jsonl")
        self.evaluations = RunEvaluations(path / "evaluations.jsonl")
        self.log_file = path / "log.txt"
        self.cancel_file = path / "cancel"
        self.pause_file = path / "pause"
        self.heartbeat_file = path / "heartbeat"
        self.data = path / "data"
        self.ray = path / "ray"
        self.checkpoints = self.ray / "checkpoints"
        self.model = path / "model"

    def create(self, spec: TrainingSpec, record: RunRecord) -> None:
        """Write a new run; it exists once its record does, which is written last."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_spec(spec)
        versioned_json.write_object(self.record_file, record.model_dump())

    def write_spec(self, spec: TrainingSpec) -> None:
        """Replace the resolved spec; keys of a newer version that the file has are kept."""
        unknown: dict[str, Any] = {}
        if self.spec_file.exists():
            before = versioned_json.read_object(self.spec_file)
            unknown = {key: value for key, value in before.items() if key not in _SPEC_KEYS}
        durable.write_json(self.spec_file, {**spec.model_dump(mode="json"), **unknown})

    def read_spec(self) -> TrainingSpec:
        """Read the resolved spec, without the keys that only a newer version knows.

        Raises `FileNotFoundError`, or `DamagedFileError` for a spec that this version cannot use.
        """
        value = versioned_json.read_object(self.spec_file)
        value.pop(versioned_json.FORMAT_KEY, None)
        try:
            return read_stored_spec(value, self.path.name)
        except ValidationError as exc:
            # The version in run.json is that of the release that wrote the spec.
            record = (
                versioned_json.read_object(self.record_file) if self.record_file.exists() else {}
            )
            reason = describe_validation_error(exc)
            raise versioned_json.explain_invalid(self.spec_file, record, reason) from exc

    def read_data_summary(self) -> dict[str, Any]:
        """Read the summary of the rows: their format, counts and hash."""
        summary: dict[str, Any] = durable.read_json(self.data / "summary.json")
        return summary

    @property
    def has_data(self) -> bool:
        """Whether all rows are stored as tokens."""
        return (self.data / "summary.json").is_file()

    def read_record(self) -> RunRecord:
        """Read the record; see `read_run_record`."""
        return read_run_record(self.record_file)

    def update_record(self, **changes: Any) -> RunRecord:
        """Replace fields of the record; only the process that may write it may call this.

        `training.run.run_state` changes the status, which decides what other processes may do.
        """
        assert changes.keys() <= RunRecord.model_fields.keys(), changes.keys()
        record = RunRecord.model_validate({**self.read_record().model_dump(), **changes})
        versioned_json.write_object(self.record_file, record.model_dump())
        return record

    @contextmanager
    def lock(self, role: str, timeout_s: float) -> Iterator[None]:
        """Hold the lock of a role ('driver', 'writer') during the body; it ends with the process.

        Waits at most `timeout_s` for another process to release it, then raises `RunBusyError`.
        """
        deadline = time.monotonic() + timeout_s
        with (self.path / f".{role}.lock").open("w") as file:
            while not try_lock(file):
                if time.monotonic() >= deadline:
                    raise RunBusyError(
                        f"another process computes run {self.path.name!r}; wait for its end, "
                        "or stop it"
                    )
                time.sleep(_LOCK_INTERVAL_S)
            yield

    def is_locked(self, role: str) -> bool:
        """Return whether a process on this machine holds the lock of a role of this run.

        This check may delay a concurrent `lock` for an instant.
        """
        try:
            with open_regular(self.path / f".{role}.lock") as file:
                return not try_lock(file, is_shared=True)
        except FileNotFoundError:
            return False

    def request_cancel(self) -> None:
        """Request that the run ends as cancelled, whichever process then writes its record."""
        self.cancel_file.touch()

    @property
    def is_cancel_requested(self) -> bool:
        """Whether cancellation of the run was requested."""
        return self.cancel_file.exists()

    def request_pause(self, reason: PauseReason = "user") -> None:
        """Request that the run finishes its step, saves a checkpoint and frees its resources."""
        if reason == "user":
            self.pause_file.open("wb").close()  # empty: a full disk has room for that
        else:
            durable.write_bytes(self.pause_file, reason.encode())

    @property
    def is_pause_requested(self) -> bool:
        """Whether a pause of the run was requested."""
        return self.pause_file.exists()

    @property
    def requested_pause_reason(self) -> PauseReason | None:
        """The reason of a requested pause; None if no pause was requested."""
        try:
            return "shutdown" if read_regular(self.pause_file) == b"shutdown" else "user"
        except FileNotFoundError:
            return None
