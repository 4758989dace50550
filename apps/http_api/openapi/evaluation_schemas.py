"""Schemas of evaluations of models, and of their rows."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _EvaluationAnswer(BaseModel):
    model_config = ConfigDict(frozen=True)


class EvaluationError(_EvaluationAnswer):
    """Why an evaluation failed."""

    code: str | None
    message: str


class EvaluatedModel(_EvaluationAnswer):
    """A model of an evaluation, and its metrics over the rows that it answered."""

    model: str = Field(description="The id of the model.")
    requested: str = Field(description="The id or alias in the request.")
    num_rows: int = Field(description="Rows that are done.")
    num_failed: int = Field(description="Of these, the rows that the model could not answer.")
    exact_match: float | None = Field(
        description="Share of answers equal to the expected one, apart from white space."
    )
    contains: float | None = Field(
        description="Share of answers that contain the expected one, in any case."
    )
    rouge_l: float | None = Field(
        description="Mean F-measure of the longest common subsequence of words (Lin 2004)."
    )
    perplexity: float | None = Field(
        description="Exponential of the mean negative log-likelihood per token of all expected "
        "answers."
    )


class Evaluation(_EvaluationAnswer):
    """An evaluation of one or two models."""

    id: str
    object: Literal["evaluation"]
    status: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    created_at: int
    finished_at: int | None
    file: str | None
    job: str | None = Field(description="The job whose validation rows are used.")
    max_rows: int
    max_tokens: int = Field(description="Most tokens of one answer.")
    num_rows: int | None = Field(description="Null until the rows were read.")
    num_done: int = Field(description="Rows that all models answered, or could not answer.")
    error: EvaluationError | None
    models: list[EvaluatedModel]


class EvaluationPage(_EvaluationAnswer):
    """A page of evaluations."""

    object: Literal["list"]
    data: list[Evaluation]
    first_id: str | None
    last_id: str | None
    has_more: bool


class EvaluatedAnswer(_EvaluationAnswer):
    """The answer of a model to a row."""

    model: str
    text: str = Field(description="The answer; its first 20,000 characters.")
    finish_reason: Literal["stop", "length"] | None
    exact_match: bool
    contains: bool
    rouge_l: float
    perplexity: float | None = Field(
        description="Of the expected answer; null if it exceeds the model's context."
    )
    error: str | None = Field(description="Why the model could not answer.")


class EvaluationRow(_EvaluationAnswer):
    """A row of an evaluation with the answers of its models."""

    id: str
    object: Literal["evaluation.row"]
    file: str = Field(description="The file of the row.")
    number: int = Field(description="The number of the row in the file, from 1.")
    prompt: str = Field(description="What was asked, as readable text.")
    expected: str
    answers: list[EvaluatedAnswer]


class EvaluationRowPage(_EvaluationAnswer):
    """A page of the rows of an evaluation."""

    object: Literal["list"]
    data: list[EvaluationRow]
    first_id: str | None
    last_id: str | None
    has_more: bool
