"""Evaluations and their rows as the API shows them."""

from collections.abc import Generator, Iterable
from typing import Literal, TypedDict

from apps.csv_table import write_csv_line
from apps.evaluations.evaluation_record import (
    EvaluationRecord,
    EvaluationStatus,
    StoredAnswer,
    StoredRow,
)

_ANSWER_COLUMNS = (
    *("model", "text", "finish_reason", "exact_match", "contains", "rouge_l", "perplexity"),
    "error",
)


class EvaluationErrorObject(TypedDict):
    """Why an evaluation failed."""

    code: str | None
    message: str


class EvaluatedModelObject(TypedDict):
    """A model with its metrics over the rows that are done; null without any."""

    model: str
    requested: str
    num_rows: int
    num_failed: int
    exact_match: float | None
    contains: float | None
    rouge_l: float | None
    perplexity: float | None


class EvaluationObject(TypedDict):
    """An evaluation as the API shows it."""

    id: str
    object: Literal["evaluation"]
    status: EvaluationStatus
    created_at: int
    finished_at: int | None
    file: str | None
    job: str | None
    max_rows: int
    max_tokens: int
    num_rows: int | None
    num_done: int
    error: EvaluationErrorObject | None
    models: list[EvaluatedModelObject]


class EvaluatedAnswerObject(TypedDict):
    """The answer of a model to a row."""

    model: str
    text: str
    finish_reason: str | None
    exact_match: bool
    contains: bool
    rouge_l: float
    perplexity: float | None
    error: str | None


class EvaluationRowObject(TypedDict):
    """A row with the answers of all models."""

    id: str
    object: Literal["evaluation.row"]
    file: str
    number: int
    prompt: str
    expected: str
    answers: list[EvaluatedAnswerObject]


def describe_evaluation(record: EvaluationRecord) -> EvaluationObject:
    """Return an evaluation as the API shows it."""
    error = record.error
    return {
        "id": record.id,
        "object": "evaluation",
        "status": record.status,
        "created_at": record.created_at,
        "finished_at": record.finished_at,
        "file": record.file,
        "job": record.job,
        "max_rows": record.max_rows,
        "max_tokens": record.max_tokens,
        "num_rows": record.num_rows,
        "num_done": record.num_done,
        "error": None if error is None else {"code": error.code, "message": error.message},
        "models": [
            {
                "model": one.model,
                "requested": one.requested,
                "num_rows": one.num_rows,
                "num_failed": one.num_failed,
                "exact_match": one.exact_match,
                "contains": one.contains,
                "rouge_l": one.rouge_l,
                "perplexity": one.perplexity,
            }
            for one in record.models
        ],
    }


def describe_row(row: StoredRow) -> EvaluationRowObject:
    """Return a row as the API shows it."""
    return {
        "id": row.id,
        "object": "evaluation.row",
        "file": row.file,
        "number": row.number,
        "prompt": row.prompt,
        "expected": row.expected,
        "answers": [_describe_answer(answer) for answer in row.answers],
    }


def _describe_answer(answer: StoredAnswer) -> EvaluatedAnswerObject:
    return {
        "model": answer.model,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "exact_match": answer.exact_match,
        "contains": answer.contains,
        "rouge_l": answer.rouge_l,
        "perplexity": answer.perplexity,
        "error": answer.error,
    }


def write_rows_csv(
    record: EvaluationRecord, rows: Iterable[StoredRow]
) -> Generator[bytes, None, None]:
    """Yield the lines of a table of rows, with columns for the answers of each model."""
    columns = [
        name if place == 0 else f"{name}_{place + 1}"
        for place in range(len(record.models))
        for name in _ANSWER_COLUMNS
    ]
    yield write_csv_line(["id", "number", "prompt", "expected", *columns])
    for row in rows:
        found = [answer.model_dump() for answer in row.answers]
        answers = [answer[name] for answer in found for name in _ANSWER_COLUMNS]
        yield write_csv_line([row.id, row.number, row.prompt, row.expected, *answers])
