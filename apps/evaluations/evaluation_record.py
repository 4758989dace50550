"""What is stored of an evaluation: its record, and the rows with the answers of its models."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage import versioned_json
from storage.durable import DamagedFileError

EvaluationStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]
RowFilter = Literal["all", "different", "wrong"]
"""All rows; those whose answers differ; those with an answer that is not exact."""
FINAL_STATUSES: frozenset[EvaluationStatus] = frozenset({"succeeded", "failed", "cancelled"})


class _Stored(BaseModel):
    """An object whose keys of a newer version are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")


class EvaluationFailure(_Stored):
    """Why an evaluation failed, as the error of a request."""

    code: str | None
    message: str


class RowPart(_Stored):
    """The rows of one file: those with the given numbers, from 1; None: the first ones."""

    file: str
    numbers: tuple[int, ...] | None = None


class ModelFigures(_Stored):
    """A model of an evaluation, and its metrics over the rows that are done; None without any.

    `requested` is the name in the request, and `model` the id of the model that it referred to.
    """

    model: str
    requested: str
    num_rows: int = 0
    num_failed: int = 0
    exact_match: float | None = None
    contains: float | None = None
    rouge_l: float | None = None
    perplexity: float | None = None


class EvaluationRecord(_Stored):
    """The state of an evaluation, replaced as a whole at every change.

    `rows` and `training` are resolved when it is created, so that a job whose rows are used may be
    deleted afterwards.
    """

    id: str
    status: EvaluationStatus = "queued"
    created_at: int = Field(description="Unix seconds.")
    finished_at: int | None = Field(None, description="Unix seconds.")
    file: str | None = None
    job: str | None = None
    max_rows: int
    max_tokens: int
    rows: tuple[RowPart, ...]
    training: dict[str, Any] = Field(
        default_factory=dict, description="Settings with which the rows are read."
    )
    num_rows: int | None = Field(None, description="Rows, once they were read.")
    num_done: int = Field(0, description="Rows that all models answered, or failed to.")
    error: EvaluationFailure | None = None
    models: tuple[ModelFigures, ...]

    @property
    def is_final(self) -> bool:
        """Whether the evaluation has ended."""
        return self.status in FINAL_STATUSES

    def uses_model(self, name: str) -> bool:
        """Return whether a model is evaluated, by its id or by the name in the request."""
        return any(name in (one.model, one.requested) for one in self.models)

    def list_needed(self) -> set[str]:
        """Return the ids of the models and files that it needs until it has ended."""
        return {one.model for one in self.models} | {part.file for part in self.rows}


class StoredAnswer(_Stored):
    """The answer of a model to a row; `error` is why there is none.

    `loss_sum` is the negative log-likelihood of the `num_tokens` tokens of the expected answer, in
    nats.
    """

    model: str
    text: str = ""
    finish_reason: str | None = None
    exact_match: bool = False
    contains: bool = False
    rouge_l: float = 0.0
    perplexity: float | None = None
    error: str | None = None
    loss_sum: float = 0.0
    num_tokens: int = 0


class StoredRow(_Stored):
    """A row that all models of an evaluation have answered, or failed to; `number` is from 1."""

    id: str
    file: str
    number: int
    prompt: str
    expected: str
    answers: tuple[StoredAnswer, ...]

    @property
    def is_exact(self) -> bool:
        """Whether all answers are the expected one."""
        return all(answer.exact_match for answer in self.answers)

    @property
    def is_different(self) -> bool:
        """Whether the answers of two models differ; of one model, whether it is not exact."""
        if len(self.answers) == 1:
            return not self.is_exact
        return len({(answer.text, answer.error) for answer in self.answers}) > 1

    def matches(self, chosen: RowFilter) -> bool:
        """Return whether the row is one of a filter."""
        if chosen == "different":
            return self.is_different
        return chosen == "all" or not self.is_exact


def parse_stored_row(line: bytes) -> StoredRow | None:
    """Parse a line of a file of rows; None for one that is damaged."""
    try:
        return StoredRow.model_validate_json(line)
    except ValidationError:
        return None


def read_evaluation_record(path: Path) -> EvaluationRecord:
    """Read an evaluation.json.

    Raises `FileNotFoundError`, and `DamagedFileError` for a record that cannot be used.
    """
    value = versioned_json.read_object(path)
    try:
        record = EvaluationRecord.model_validate(value)
    except ValidationError as exc:
        fault = exc.errors()[0]
        reason = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise versioned_json.explain_invalid(path, value, reason) from exc
    if record.id != path.parent.name:
        raise DamagedFileError(
            path, f"its id is {record.id!r}, expected that of its folder {path.parent.name!r}"
        )
    return record
