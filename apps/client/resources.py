"""Responses of the HTTP API, as far as its clients use them; unknown keys are ignored.

Values of the wrong type are ignored too, unless a client cannot do without them: a client of one
release may talk to an API of another one.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from apps.client.errors import UnexpectedResponseError

logger = logging.getLogger(__name__)

ACTIVE_STATUSES = frozenset({"validating_files", "queued", "running"})
FINAL_STATUSES = frozenset({"succeeded", "failed", "cancelled"})


class Resource(BaseModel):
    """An object of the API; `raw` has all that the API sent."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    _raw: Mapping[str, object] = PrivateAttr(default_factory=dict)

    @property
    def raw(self) -> Mapping[str, object]:
        """The JSON object as the API sent it."""
        return self._raw


AnyResource = TypeVar("AnyResource", bound=Resource)


def read_resource(kind: type[AnyResource], value: object) -> AnyResource:
    """Parse an object; optional values of the wrong type are ignored.

    Raises `UnexpectedResponseError` if a required value is missing or of the wrong type.
    """
    try:
        return _parse(kind, value)
    except ValidationError as exc:
        faults = exc.errors()
    wrong = {fault["loc"][0] for fault in faults if fault["loc"]}
    try:
        if not isinstance(value, Mapping):
            raise UnexpectedResponseError(f"found {str(value)[:100]!r}, expected an object")
        kept = {name: value[name] for name in value if name not in wrong}
        resource = _parse(kind, kept)
    except ValidationError as exc:
        needed = {fault["loc"][0] for fault in exc.errors() if fault["loc"]}
        fault = next(fault for fault in faults if not fault["loc"] or fault["loc"][0] in needed)
        field = ".".join(map(str, fault["loc"]))
        raise UnexpectedResponseError(f"{kind.__name__}.{field}: {fault['msg']}") from exc
    resource._raw = value
    return resource


def read_resources(kind: type[AnyResource], values: Sequence[object]) -> list[AnyResource]:
    """Parse the entries of a list; one that cannot be parsed is logged and omitted."""
    found = []
    for value in values:
        try:
            found.append(read_resource(kind, value))
        except UnexpectedResponseError as exc:
            logger.warning("an entry of a list is ignored: %s", exc)
    return found


def _parse(kind: type[AnyResource], value: object) -> AnyResource:
    resource = kind.model_validate(value)
    if isinstance(value, Mapping):
        resource._raw = value
    return resource


class Access(Resource):
    """The key of a request and its permissions; access is never decided without the key."""

    key: str | None
    permissions: tuple[str, ...] = ()


class FileCheck(Resource):
    """What the check of a file found."""

    num_rows: int | None = None
    format: str | None = None
    num_tokens: int = 0
    model: str | None = None
    learned_share: float = 0.0
    task: str | None = None
    ignored_keys: Mapping[str, int] = {}
    label_counts: Mapping[str, int] = {}


class File(Resource):
    """An uploaded file of rows."""

    id: str
    filename: str = ""
    bytes: int = 0
    created_at: int = 0
    status: str | None = None
    status_details: str | None = None
    error_code: str | None = None
    check: FileCheck | None = None


class Token(Resource):
    """A token of a row, and whether the model learns to generate it."""

    text: str
    learned: bool


class Row(Resource):
    """One row as the model sees it: its number, and the line on which it begins.

    If `is_part` is set, it is one answer of a row, after its own prompt. A row for a classifier has
    texts and labels instead of tokens. Each answer of a pair is a row; `is_preferred` says which
    one is the better.
    """

    line: int
    number: int | None = None
    tokens: tuple[Token, ...]
    is_part: bool = False
    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    is_preferred: bool | None = None


class Preview(Resource):
    """The first rows of a file, and the counts of the whole file unless it is large."""

    format: str
    num_rows: int | None
    num_tokens: int | None
    num_learned_tokens: int | None
    num_truncated_rows: int | None
    num_dropped_rows: int | None
    num_split_rows: int | None = None
    max_length: int
    ignored_keys: Mapping[str, int] = {}
    label_counts: Mapping[str, int] = {}
    task: str | None = None
    rows: tuple[Row, ...]


class Defaults(Resource):
    """The default settings of a job for one model and task, and the JSON schema of each.

    `tasks` are those that the model can learn. `presets` has, by their ids, settings that replace
    several of `training` together; `preset_descriptions` says what they are for.
    """

    model: str
    task: str = "causal_lm"
    tasks: tuple[str, ...] = ("causal_lm",)
    training: Mapping[str, object]
    presets: Mapping[str, Mapping[str, object]] = Field(default_factory=dict)
    preset_descriptions: Mapping[str, str] = Field(default_factory=dict)
    schemas: Mapping[str, Mapping[str, object]] = Field(alias="schema")


class EstimatedMemory(Resource):
    """The peak memory of a worker, and the memory of the machine or of one GPU."""

    device: str = "cpu"
    num_workers: int = 1
    worker_bytes: int | None = None
    is_measured: bool = False
    total_bytes: int | None = None
    free_bytes: int | None = None


class EstimatedDisk(Resource):
    """The disk space that a job is likely to need, and the free one."""

    needed_bytes: int | None = None
    free_bytes: int | None = None


class Estimate(Resource):
    """What a job will take; None: unknown."""

    num_rows: int | None = None
    num_steps: int | None = None
    num_tokens: int | None = None
    is_exact: bool = False
    tokens_per_s: float | None = None
    training_s: float | None = None
    measured_by: str | None = None
    memory: EstimatedMemory = EstimatedMemory()
    disk: EstimatedDisk = EstimatedDisk()


class Progress(Resource):
    """The progress of a running job."""

    step: int | None = None
    num_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    elapsed_s: float | None = None
    remaining_s: float | None = None
    stage: str | None = None


class JobError(Resource):
    """Why a job failed."""

    message: str


class LogEnd(NamedTuple):
    """The end of a log, and the offset of its first byte."""

    offset: int
    content: bytes


class Job(Resource):
    """A fine-tuning job, from its request to its model."""

    id: str
    status: str
    model: str = ""
    fine_tuned_model: str | None = None
    training_file: str = ""
    training_filename: str | None = None
    validation_file: str | None = None
    result_files: tuple[str, ...] = ()
    training: Mapping[str, object] = {}
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    estimated_finish: int | None = None
    trained_tokens: int | None = None
    user_provided_suffix: str | None = None
    error: JobError | None = None
    progress: Progress | None = None
    waiting_for: str | None = None
    resumable: bool = False
    extended_from: str | None = None

    @property
    def is_active(self) -> bool:
        """Whether the job is being validated, queued or running."""
        return self.status in ACTIVE_STATUSES

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.status in FINAL_STATUSES

    @property
    def is_paused(self) -> bool:
        """Whether the job is paused until it is resumed."""
        return self.status == "paused"


class JobListPage(NamedTuple):
    """Some of the jobs, newest first; `has_more` says whether there are older ones."""

    jobs: list[Job]
    has_more: bool


class Event(Resource):
    """An event of a job."""

    id: str
    created_at: int = 0
    level: str = "info"
    message: str = ""
    code: str | None = None
    type: str = "message"


class Metrics(Resource):
    """The metrics of one optimizer step."""

    step: int
    num_steps: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    tokens_per_s: float = 0.0
    remaining_s: float = 0.0


class ConfusionMatrix(Resource):
    """How often rows of each class (first index) were predicted as each class (second index)."""

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


class StepEvaluation(Resource):
    """The validation loss and the metrics after a step."""

    step: int
    loss: float | None = None
    metrics: Mapping[str, float] = {}
    confusion_matrix: ConfusionMatrix | None = None


class CheckpointMetrics(Resource):
    """The losses of a checkpoint."""

    train_loss: float | None = None
    valid_loss: float | None = None
    epoch: float | None = None
    trained_tokens: float | None = None


class JobCheckpoint(Resource):
    """A checkpoint that a job still has."""

    id: str
    created_at: int = 0
    step_number: int = 0
    fine_tuned_model_checkpoint: str = ""
    metrics: CheckpointMetrics = CheckpointMetrics()


class ScoredLabel(Resource):
    """A label of a classified text."""

    label: str
    score: float


class TextLabels(Resource):
    """The labels of one text, or of two together; or its value."""

    labels: tuple[ScoredLabel, ...] = ()
    value: float | None = None


class Piece(BaseModel):
    """A part of a streamed answer: some text, or the counts at its end.

    All parts name the model, and the run and the checkpoint that it was made from, if known.
    """

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    text: str = ""
    model: str | None = None
    run_id: str | None = None
    checkpoint: str | None = None
    num_tokens: int | None = None
    finish_reason: str | None = None
