"""The record of a run: its status, times and error, and which process may write it.

Only `training.run.run_state` changes the status.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage import versioned_json
from training.spec import describe_validation_error

RunStatus = Literal[
    "validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"
]
FINAL_STATUSES: frozenset[RunStatus] = frozenset({"succeeded", "failed", "cancelled"})
PauseReason = Literal["user", "shutdown"]
Writer = Literal["", "queue", "job"]
"""The process that may write a record: the queue, or the Ray job or command that computes the run.

It is empty in records that name none.
"""


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
    extended_from: str | None = Field(
        None, description="The run that this one extends in a folder of its own."
    )
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
    num_lost: int = Field(0, description="Interruptions since its last completed step.")
    lost_step: int = Field(0, description="How far it had come at the last interruption.")
    result_file: str | None = Field(None, description="Id of the file with its figures.")
    num_starts: int = Field(0, description="Ray Jobs that were started for it.")
    writer: Writer = Field("", description="The process that may write this record.")
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
    value = versioned_json.read_object(path)
    try:
        return RunRecord.model_validate(value)
    except ValidationError as exc:
        raise versioned_json.explain_invalid(path, value, describe_validation_error(exc)) from exc
