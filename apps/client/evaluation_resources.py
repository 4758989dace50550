"""Responses about evaluations of models, as far as the API's clients use them."""

from typing import NamedTuple

from apps.client.resources import ACTIVE_STATUSES, Resource


class EvaluationError(Resource):
    """Why an evaluation failed."""

    code: str | None = None
    message: str = ""


class EvaluatedModel(Resource):
    """One model of an evaluation, and its metrics over the rows that are done; None without any.

    `requested` is the id or alias of the request, and `model` what it pointed to. `exact_match`,
    `contains` and `rouge_l` are between 0 and 1.
    """

    model: str
    requested: str = ""
    num_rows: int = 0
    num_failed: int = 0
    exact_match: float | None = None
    contains: float | None = None
    rouge_l: float | None = None
    perplexity: float | None = None


class Evaluation(Resource):
    """An evaluation of one or two models, with its progress and its metrics.

    The rows are those of `file`, or the validation rows of `job`. `num_rows` is None until they
    were read; `num_done` rows were answered by all models.
    """

    id: str
    status: str
    created_at: int = 0
    finished_at: int | None = None
    file: str | None = None
    job: str | None = None
    max_rows: int = 0
    max_tokens: int = 0
    num_rows: int | None = None
    num_done: int = 0
    error: EvaluationError | None = None
    models: tuple[EvaluatedModel, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether it is queued or running."""
        return self.status in ACTIVE_STATUSES


class EvaluatedAnswer(Resource):
    """The answer of a model to a row, and its metrics; `error` is why there is none."""

    model: str
    text: str = ""
    finish_reason: str | None = None
    exact_match: bool = False
    contains: bool = False
    rouge_l: float = 0.0
    perplexity: float | None = None
    error: str | None = None


class EvaluationRow(Resource):
    """A row of an evaluation; `number` is that in the file, from 1."""

    id: str
    number: int
    prompt: str = ""
    expected: str = ""
    answers: tuple[EvaluatedAnswer, ...] = ()


class EvaluationRows(NamedTuple):
    """Some rows of an evaluation; `has_more` says whether more follow."""

    rows: list[EvaluationRow]
    has_more: bool
