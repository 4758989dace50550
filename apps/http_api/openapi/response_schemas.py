"""Response schemas of `/openapi.json`; tests compare real responses with them.

Routes build their responses as dictionaries. OpenAI's fields have OpenAI's names.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

AnyObject = Mapping[str, object]
"""A JSON object whose keys are not described."""


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorDetail(_Answer):
    """The details of an error."""

    message: str = Field(description="What failed, the value found and what was expected.")
    type: str = Field(description="Kind of error, as in 'invalid_request_error'.")
    param: str | None = Field(description="The field at fault, if there is one.")
    code: str | None = Field(description="Machine-readable reason.")


class Error(_Answer):
    """The body of every error response."""

    error: ErrorDetail


class Liveness(_Answer):
    """The process that serves HTTP is running."""

    status: Literal["ok"]


class Readiness(_Answer):
    """Whether the application can work; `checks` has the state of each part."""

    status: Literal["ok", "failed"]
    checks: dict[str, Literal["ok", "failed"]]


class Access(_Answer):
    """The key of a request, its permissions and its rate limits."""

    object: Literal["access"]
    key: str | None
    role: str
    permissions: list[str]
    requests_per_minute: int | None
    tokens_per_minute: int | None


class File(_Answer):
    """An uploaded file, or the metrics of a job."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int = Field(description="Unix seconds.")
    filename: str
    purpose: Literal["fine-tune", "fine-tune-results"]
    sha256: str | None = None
    status: Literal["uploaded", "processed", "error"]
    status_details: str | None
    error_code: Literal["unknown_columns", "invalid_rows"] | None = Field(
        None, description="Why the check failed: other columns may be set for a job, or not."
    )
    check: AnyObject | None = Field(None, description="Counts of rows and tokens.")


class PreviewToken(_Answer):
    """A token of a row, and whether the model learns to generate it."""

    text: str
    learned: bool


class PreviewRow(_Answer):
    """A row as a model's tokens; if `is_part` is true, one of several answers in it."""

    number: int = Field(description="The number of the row in the file, from 1.")
    line: int = Field(description="The line of the file that it begins in.")
    tokens: list[PreviewToken]
    is_part: bool = False
    texts: list[str] | None = Field(
        None, description="The texts of a row with labels, or the name of its image."
    )
    labels: list[str] | None = Field(None, description="The labels of such a row.")
    is_preferred: bool | None = Field(
        None,
        description="Whether it is the better answer of a pair, or a good one; for preferences.",
    )


class FilePreview(_Answer):
    """The first rows of a file as a model's tokens, or with their labels."""

    object: Literal["file.preview"]
    format: str
    max_length: int
    num_rows: int | None
    num_tokens: int | None
    num_learned_tokens: int | None
    num_truncated_rows: int | None
    num_dropped_rows: int | None
    num_split_rows: int | None = Field(
        description="Rows that were split, one for each answer, because the chat template "
        "rewrites earlier turns."
    )
    ignored_keys: dict[str, int] = Field(
        description="Ignored keys of rows, and how many rows have each: of all rows if they have "
        "been counted, else of the rows that were read for the preview."
    )
    rows: list[PreviewRow]
    task: str = Field(description="The task for which the rows are shown.")
    label_counts: dict[str, int] | None = Field(
        None, description="Rows of each label, if the check of the file counted them."
    )


class _Page(_Answer):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FilePage(_Page):
    """A page of files."""

    data: list[File]


class Deletion(_Answer):
    """The deletion of an object."""

    id: str
    object: str
    deleted: Literal[True]


class JobError(_Answer):
    """Why a job failed."""

    code: str
    message: str
    param: str | None


class WeightedFile(_Answer):
    """One of several training files."""

    file: str
    weight: float = 1.0


class FineTuningJob(_Answer):
    """A fine-tuning job."""

    id: str
    object: Literal["fine_tuning.job"]
    created_at: int = Field(description="Unix seconds.")
    started_at: int | None = None
    finished_at: int | None
    estimated_finish: int | None
    status: Literal[
        "validating_files",
        "queued",
        "running",
        "paused",
        "succeeded",
        "failed",
        "cancelled",
        "unreadable",
    ]
    model: str
    fine_tuned_model: str | None
    organization_id: str
    training_file: str
    training_filename: str | None = Field(description="Name of the uploaded file.")
    training_files: list[WeightedFile] | None = Field(
        description="The files of a mix with their weights; null if it is training_file alone."
    )
    validation_file: str | None
    result_files: list[str]
    seed: int
    trained_tokens: int | None
    hyperparameters: AnyObject
    method: AnyObject
    error: JobError | None
    user_provided_suffix: str | None
    metadata: dict[str, str] | None
    integrations: None
    training: AnyObject = Field(description="The settings, by the names of the training spec.")
    progress: dict[str, float] | None
    priority: int
    waiting_for: str | None
    resumable: bool
    extended_from: str | None = Field(description="The job whose training this one continues.")


class JobPage(_Page):
    """A page of jobs."""

    data: list[FineTuningJob]


class JobDefaults(_Answer):
    """The default settings of a job."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)

    object: Literal["fine_tuning.defaults"]
    model: str
    task: str = Field(description="The task that these settings are for.")
    tasks: list[str] = Field(description="The tasks that the model can learn.")
    training: AnyObject
    presets: dict[str, AnyObject] = Field(
        description="What each preset changes in 'training', by its id."
    )
    preset_descriptions: dict[str, str] = Field(description="What each preset is for.")
    settings_schema: AnyObject = Field(alias="schema", description="JSON schema of each setting.")


class EstimatedMemory(_Answer):
    """The memory of a worker, and that of the machine or of one GPU."""

    device: Literal["cpu", "gpu"]
    num_workers: int
    worker_bytes: int | None = Field(description="Peak of the worker that needs the most.")
    is_measured: bool = Field(description="Whether an earlier run on the same files measured it.")
    total_bytes: int | None
    free_bytes: int | None


class EstimatedDisk(_Answer):
    """The disk space that checkpoints and the model are likely to need."""

    needed_bytes: int | None
    free_bytes: int


class JobEstimate(_Answer):
    """What a job will take; null: unknown."""

    object: Literal["fine_tuning.estimate"]
    model: str = Field(description="The id of the model.")
    task: str
    num_rows: int | None = Field(description="Rows of an epoch.")
    num_steps: int | None
    num_tokens: int | None = Field(description="Tokens of all steps, without padding.")
    is_exact: bool = Field(
        description="Whether steps and tokens were counted from the rows, and no early stop is set."
    )
    tokens_per_s: float | None
    training_s: float | None = Field(
        description="Seconds of training, as an earlier run with the same settings was fast."
    )
    measured_by: str | None = Field(description="The job that was measured.")
    memory: EstimatedMemory
    disk: EstimatedDisk


class JobEvent(_Answer):
    """An event of a job."""

    id: str
    object: Literal["fine_tuning.job.event"]
    type: Literal["message", "metrics"]
    created_at: int = Field(description="Unix seconds.")
    level: Literal["info", "warn", "error"]
    message: str
    code: str | None = Field(None, description="Machine-readable code; some events have none.")
    data: AnyObject


class JobEventPage(_Page):
    """A page of events."""

    data: list[JobEvent]


class JobCheckpoint(_Answer):
    """A checkpoint that a job still has."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: int = Field(description="Unix seconds.")
    fine_tuning_job_id: str
    step_number: int
    fine_tuned_model_checkpoint: str
    metrics: dict[str, float | None]


class JobCheckpointPage(_Page):
    """A page of checkpoints."""

    data: list[JobCheckpoint]


class JobMetrics(_Answer):
    """Metrics of optimizer steps."""

    object: Literal["list"]
    data: list[dict[str, float | None]]


class ConfusionMatrix(_Answer):
    """How often rows of each class were predicted as each class."""

    labels: list[str]
    counts: list[list[int]] = Field(
        description="'counts[i][j]': rows of class 'labels[i]' that were predicted as 'labels[j]'."
    )


class JobEvaluation(_Answer):
    """The validation loss and the metrics after a step."""

    object: Literal["fine_tuning.job.evaluation"]
    step: int
    loss: float | None
    metrics: dict[str, float]
    confusion_matrix: ConfusionMatrix | None = Field(
        description="Null for a task without classes, or with too many."
    )
    created_at: int = Field(description="Unix seconds.")


class JobEvaluations(_Answer):
    """Evaluations of a job, newest first."""

    object: Literal["list"]
    data: list[JobEvaluation]


class PublishingModel(_Answer):
    """A model that is being published from a checkpoint."""

    id: str
    object: Literal["model"]
    status: Literal["publishing"]
    run_id: str
