"""The folder of a run, with its record, events, metrics and requests.

The `format_version` in run.json applies to all files of the folder (`storage.versioned`). spec.json
has no version of its own: release 0.1 refuses a spec with an unknown key.

spec.json      the resolved spec
run.json       the record: status, times, error, and which process may write it
events.jsonl   the events
metrics.jsonl  one line per optimizer step
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

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage import durable, versioned
from storage.locks import try_lock
from storage.regular_file import open_regular, read_regular
from training.run.event_codes import EventCode
from training.run.run_log import RunLog, RunLogHandler
from training.spec import TrainingSpec, describe_validation_error
from training.stored_spec import read_stored_spec

RunStatus = Literal[
    "validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"
]
FINAL_STATUSES: frozenset[RunStatus] = frozenset({"succeeded", "failed", "cancelled"})
EventLevel = Literal["info", "warn", "error"]
PauseReason = Literal["user", "shutdown"]

REJECTED_SUFFIX = ".rejected"
"""Suffix of the folder of a model that failed its verification, beside the intended path."""

MAX_EVENTS_BYTES = 4_000_000
"""Size of a run's events from which no more are added; for warnings and errors, twice that."""

_LOCK_INTERVAL_S = 0.1
_MAX_EVENT_DIGITS = 18
_SPEC_KEYS = TrainingSpec.model_fields.keys()


class RunBusyError(RuntimeError):
    """Another process computes this run."""


class RunError(BaseModel):
    """Why a run failed, as shown to its user."""

    model_config = ConfigDict(frozen=True, extra="allow")

    code: str
    message: str
    param: str | None = None


class Extension(BaseModel):
    """An earlier end of a run that was then extended."""

    model_config = ConfigDict(frozen=True, extra="allow")

    epochs: int
    step: int
    model_id: str | None
    ended_at: int = Field(description="Unix seconds.")


class RunRecord(BaseModel):
    """The state of a run, replaced as a whole at every change.

    Keys that a newer version wrote are kept.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str
    status: RunStatus = "queued"
    created_at: int = Field(description="Unix seconds.")
    started_at: int | None = Field(None, description="When it first computed, in Unix seconds.")
    computing_since: int | None = Field(
        None, description="When it began to compute, or last resumed, in Unix seconds."
    )
    finished_at: int | None = None
    model_id: str | None = Field(None, description="The model that came of it, once published.")
    error: RunError | None = None
    extends: tuple[Extension, ...] = Field((), description="Earlier ends, oldest first.")
    training_filename: str | None = Field(
        None, description="Name under which the training file was uploaded."
    )
    base_revision: str | None = Field(
        None, description="Content of the base model, settled when the run started."
    )
    priority: int = Field(0, description="Higher ones go first.")
    waiting_for: str | None = Field(None, description="Why a queued run does not compute yet.")
    pause_reason: PauseReason | None = Field(
        None,
        description="Who paused a paused run; 'shutdown' ends at the next start.",
    )
    needed_bytes: int | None = Field(
        None, description="Free bytes at which a run that paused on a full disk resumes."
    )
    full_disk_step: int | None = Field(
        None, description="How far it had come when the disk was last full."
    )
    num_lost: int = Field(0, description="Interruptions since it last got on by a step.")
    lost_step: int = Field(0, description="How far it had come at the last interruption.")
    result_file: str | None = Field(None, description="Id of the file with its figures.")
    num_starts: int = Field(0, description="Ray Jobs that were started for it.")
    writer: str = Field("", description="The process that may write this record: 'queue', 'job'.")
    job_id: str | None = Field(None, description="The Ray Job that computes the run.")
    request: dict[str, Any] = Field(
        default_factory=dict, description="What the application was asked for; kept, not read here."
    )

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self.status in FINAL_STATUSES


def read_run_record(path: Path) -> RunRecord:
    """Read a run.json.

    Raises `FileNotFoundError` if there is no such run, and `DamagedFileError` for a record that
    cannot be read or has values that this version does not know.
    """
    value = versioned.read_object(path)
    try:
        return RunRecord.model_validate(value)
    except ValidationError as exc:
        raise versioned.explain_invalid(path, value, describe_validation_error(exc)) from exc


class RunFolder:
    """One run's folder: its record, events and metrics."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec_file = path / "spec.json"
        self.record_file = path / "run.json"
        self.events_file = path / "events.jsonl"
        self.metrics_file = path / "metrics.jsonl"
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
        versioned.write_object(self.record_file, record.model_dump())

    def write_spec(self, spec: TrainingSpec) -> None:
        """Replace the resolved spec; keys of a newer version that the file has are kept."""
        unknown: dict[str, Any] = {}
        if self.spec_file.exists():
            before = versioned.read_object(self.spec_file)
            unknown = {key: value for key, value in before.items() if key not in _SPEC_KEYS}
        durable.write_json(self.spec_file, {**spec.model_dump(mode="json"), **unknown})

    def read_spec(self) -> TrainingSpec:
        """Read the resolved spec, without the keys that only a newer version knows.

        Raises `FileNotFoundError`, or `DamagedFileError` for a spec that this version cannot use.
        """
        value = versioned.read_object(self.spec_file)
        value.pop(versioned.FORMAT_KEY, None)
        try:
            return read_stored_spec(value, self.path.name)
        except ValidationError as exc:
            # The version in run.json is that of the release that wrote the spec.
            record = versioned.read_object(self.record_file) if self.record_file.exists() else {}
            reason = describe_validation_error(exc)
            raise versioned.explain_invalid(self.spec_file, record, reason) from exc

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
        """Replace fields of the record; only the process that may write it may call this."""
        assert changes.keys() <= RunRecord.model_fields.keys(), changes.keys()
        record = RunRecord.model_validate({**self.read_record().model_dump(), **changes})
        versioned.write_object(self.record_file, record.model_dump())
        return record

    @contextmanager
    def hold(self, role: str, timeout_s: float) -> Iterator[None]:
        """Hold the lock of a role ('driver', 'writer') of this run; it ends with the process.

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

    def is_held(self, role: str) -> bool:
        """Return whether a process on this machine holds the lock of a role of this run.

        This check may delay a concurrent `hold` for an instant.
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

    def mark_paused(self, **changes: Any) -> None:
        """Record that the run has paused, and why; only the record's writer may call this."""
        self.update_record(status="paused", pause_reason=self.requested_pause_reason, **changes)

    def add_event(
        self,
        message: str,
        *,
        level: EventLevel = "info",
        code: EventCode | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Append one event: a message, figures in `data`, and a `code` for programs.

        Events of level 'info' are dropped once there are `MAX_EVENTS_BYTES` of events, which a last
        event reports; other events are dropped at twice that size. So pausing and resuming a run
        repeatedly does not fill the disk. Raises `OSError` on a full disk.
        """
        size_bytes = self._measure_events()
        if size_bytes >= (MAX_EVENTS_BYTES if level == "info" else 2 * MAX_EVENTS_BYTES):
            return
        self._append_event(message, level, data or {}, code)
        if size_bytes < MAX_EVENTS_BYTES <= self._measure_events():
            self._append_event(
                f"The events of this job have reached {MAX_EVENTS_BYTES / 1e6:g} MB; from here on "
                "only warnings and errors are added. Its log and metrics continue",
                "warn",
                {"max_bytes": MAX_EVENTS_BYTES},
            )

    def _append_event(
        self, message: str, level: EventLevel, data: dict[str, Any], code: EventCode | None = None
    ) -> None:
        event = {"created_at": int(time.time()), "level": level, "message": message, "data": data}
        if code is not None:
            event["code"] = code
        durable.append_json_line(self.events_file, event)

    def _measure_events(self) -> int:
        try:
            return self.events_file.stat().st_size
        except FileNotFoundError:
            return 0

    def read_events(self) -> list[dict[str, Any]]:
        """Read all events, oldest first; an event's id contains its line number in the file."""
        return self.number_events(durable.read_json_lines(self.events_file), 1)

    def number_events(self, lines: list[dict[str, Any]], first: int) -> list[dict[str, Any]]:
        """Add ids to consecutive lines of the events file; `first` is the first line's number."""
        return [
            {"id": self._name_event(number), **event} for number, event in enumerate(lines, first)
        ]

    def find_event_number(self, event_id: str) -> int | None:
        """Return the line number of an event, from 1; None if the id is not of this run's events.

        An event with this id need not exist.
        """
        digits = event_id.rpartition("-")[2]
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_EVENT_DIGITS):
            return None
        number = int(digits)
        return number if number > 0 and event_id == self._name_event(number) else None

    def _name_event(self, number: int) -> str:
        return f"ftevent-{self.path.name}-{number:06d}"

    def add_metrics(self, metrics: dict[str, float]) -> None:
        """Append the metrics of one optimizer step, and when they were recorded."""
        line = {**metrics, "created_at": int(time.time())}
        durable.append_json_line(self.metrics_file, line)

    def read_metrics(self) -> list[dict[str, float]]:
        """Read the metrics of all steps, oldest first."""
        return durable.read_json_lines(self.metrics_file)

    def forget_metrics_after(self, step: int) -> None:
        """Drop the metrics of steps after `step`, which will be taken again."""
        lines = self.read_metrics()
        kept = [line for line in lines if line["step"] <= step]
        if len(kept) < len(lines):
            content = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in kept)
            durable.write_bytes(self.metrics_file, content.encode())

    def read_last_metrics(self) -> dict[str, float] | None:
        """Read the metrics of the newest step; None before the first."""
        last: dict[str, float] | None = durable.read_last_json_line(self.metrics_file)
        return last


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append this process's log records to a run's log; only for processes of a single run."""
    handler = RunLogHandler(RunLog(path))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
