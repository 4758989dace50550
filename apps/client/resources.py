"""Responses of the HTTP API, as far as the page uses them; unknown keys are ignored."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

ACTIVE_STATUSES = frozenset({"validating_files", "queued", "running"})


class _Resource(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class Model(_Resource):
    """A model for chat and fine-tuning."""

    id: str
    created: int = 0
    aliases: tuple[str, ...] = ()
    base: bool = False
    demonstration: bool = False
    run_id: str | None = None


class File(_Resource):
    """An uploaded file of rows."""

    id: str
    filename: str
    bytes: int = 0
    created_at: int = 0


class Token(_Resource):
    """A token of a row, and whether the model learns to generate it."""

    text: str
    learned: bool


class Row(_Resource):
    """One row as the model sees it; `line` is its line in the file.

    If `is_part` is set, it is one answer of a row, after its own prompt.
    """

    line: int
    tokens: tuple[Token, ...]
    is_part: bool = False


class Preview(_Resource):
    """The first rows of a file, and the counts of the whole file unless it is large."""

    format: str
    num_rows: int | None
    num_tokens: int | None
    num_learned_tokens: int | None
    num_truncated_rows: int | None
    num_dropped_rows: int | None
    num_split_rows: int | None = None
    max_length: int
    ignored_keys: dict[str, int] = {}
    rows: tuple[Row, ...]


class Defaults(_Resource):
    """The default settings of a job for one model, and the JSON schema of each."""

    model: str
    training: dict[str, Any]
    schemas: dict[str, dict[str, Any]] = Field(alias="schema")


class Progress(_Resource):
    """The progress of a running job."""

    step: int | None = None
    num_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    elapsed_s: float | None = None
    remaining_s: float | None = None
    stage: str | None = None


class JobError(_Resource):
    """Why a job failed."""

    message: str


class Job(_Resource):
    """A fine-tuning job, from its request to its model."""

    id: str
    status: str
    model: str
    fine_tuned_model: str | None = None
    training_file: str
    training_filename: str | None = None
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    trained_tokens: int | None = None
    user_provided_suffix: str | None = None
    error: JobError | None = None
    progress: Progress | None = None
    waiting_for: str | None = None
    resumable: bool = False

    @property
    def is_active(self) -> bool:
        """Whether the job is being validated, queued or running."""
        return self.status in ACTIVE_STATUSES

    @property
    def is_paused(self) -> bool:
        """Whether the job is paused until it is resumed."""
        return self.status == "paused"


class Event(_Resource):
    """An event of a job."""

    id: str
    created_at: int
    level: str = "info"
    message: str
    code: str | None = None
    type: str = "message"


class Metrics(_Resource):
    """The metrics of one optimizer step."""

    step: int
    num_steps: int
    loss: float


class Piece(_Resource):
    """A part of a streamed answer: some text, or the counts at its end."""

    text: str = ""
    model: str | None = None
    num_tokens: int | None = None
    finish_reason: str | None = None
