"""Answers of a model to questions, and how likely it finds the expected answers."""

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from apps.evaluations.evaluation_record import StoredAnswer
from apps.evaluations.row_questions import Question
from apps.evaluations.text_metrics import (
    compute_perplexity,
    compute_rouge_l,
    contains_expected,
    matches_exactly,
)
from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
)
from serving.openai.completion import CompletionRequest, parse_completion_request
from serving.wire import Piece, ValidRequest, WholeAnswer
from system.utf8 import clean_text

logger = logging.getLogger(__name__)

MAX_TEXT_CHARACTERS = 20_000
"""Most characters of a prompt, an expected answer or an answer that are stored with a row."""
_MAX_LATE = 3
_MIN_FAILURES = 5
_MAX_DELAY_S = 15.0
_MAX_TOKEN_LOSS = 1e4  # a probability of zero counts as e to the power of minus this


class AnswerSource(Protocol):
    """The generators, which answer requests for text."""

    async def answer(
        self, request: ValidRequest, body: Mapping[str, Any], request_id: str
    ) -> WholeAnswer:
        """Return the whole answer; `body` is for the log."""

    async def check(self) -> None:
        """Raise if no generator can answer at present."""


class Patience(NamedTuple):
    """How long requests are repeated, in seconds: the first delay, and until a model has failed."""

    first_delay_s: float = 0.5
    failing_s: float = 300.0
    """While the process of a model, or all generators, do not work: they are replaced."""
    overloaded_s: float = 1800.0
    """While there is no capacity."""


class ModelFailedError(Exception):
    """A model cannot be asked any more, so its evaluation fails; `code` is for programs."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class _Likelihood(NamedTuple):
    loss_sum: float
    num_tokens: int


class ModelAnswers:
    """Asks one model; a request waits while the generators have no capacity, as chats go first."""

    def __init__(
        self, source: AnswerSource, model: str, max_tokens: int, patience: Patience
    ) -> None:
        self._source = source
        self._model = model
        self._max_tokens = max_tokens
        self._patience = patience

    async def answer(self, question: Question, request_id: str) -> StoredAnswer:
        """Ask a question, and score its expected answer.

        A question that the model cannot be asked, or does not answer in time, has an `error`.
        Raises `ModelFailedError`.
        """
        if question.fault is not None:
            return self._describe_error(question.fault)
        try:
            answer = await self._ask(question, request_id)
        except (InvalidRequestError, DeadlineExceededError) as exc:
            return self._describe_error(exc.message)
        likelihood = await self._score(question, request_id)
        # An expected answer may have megabytes.
        return await asyncio.to_thread(self._measure, answer, question.expected, likelihood)

    def _measure(self, answer: Piece, expected: str, likelihood: _Likelihood) -> StoredAnswer:
        return StoredAnswer(
            model=self._model,
            text=clean_text(answer.text)[:MAX_TEXT_CHARACTERS],
            finish_reason=answer.finish_reason,
            exact_match=matches_exactly(answer.text, expected),
            contains=contains_expected(answer.text, expected),
            rouge_l=round(compute_rouge_l(answer.text, expected), 6),
            perplexity=compute_perplexity(*likelihood),
            loss_sum=likelihood.loss_sum,
            num_tokens=likelihood.num_tokens,
        )

    async def _ask(self, question: Question, request_id: str) -> Piece:
        """Return the most likely answer; raises for a prompt that the model does not accept."""
        body = {
            "model": self._model,
            "prompt": list(question.prompt_ids),
            "max_tokens": self._max_tokens,
            "temperature": 0,
        }
        return (await self._request(parse_completion_request(body), request_id)).choices[0]

    async def _score(self, question: Question, request_id: str) -> _Likelihood:
        """Return the likelihood of the expected answer; of no tokens if it exceeds the context."""
        body = {
            "model": self._model,
            "prompt": [*question.prompt_ids, *question.answer_ids],
            "max_tokens": 0,
            "echo": True,
            "logprobs": 0,
        }
        try:
            answer = await self._request(parse_completion_request(body), f"{request_id}-score")
        except (InvalidRequestError, DeadlineExceededError) as exc:
            logger.info("%s: the expected answer is not scored: %s", request_id, exc)
            return _Likelihood(0.0, 0)
        tokens = answer.choices[0].tokens[len(question.prompt_ids) :]
        losses = [
            _find_loss(token.logprob)
            for token, is_learned in zip(tokens, question.learned, strict=True)
            if is_learned
        ]
        return _Likelihood(sum(losses), len(losses))

    async def _request(self, request: CompletionRequest, request_id: str) -> WholeAnswer:
        """Send a request until it is answered.

        Raises `InvalidRequestError`, `DeadlineExceededError`, and `ModelFailedError` if the model
        does not exist any more or cannot be served.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        num_late = num_failed = 0
        failure: Exception | None = None
        delay_s = self._patience.first_delay_s
        while True:
            try:
                return await self._source.answer(request, {"evaluation": request_id}, request_id)
            except ModelNotFoundError as exc:
                raise ModelFailedError(exc.message, "model_not_found") from exc
            except (OverloadedError, BackPressureError) as exc:
                if loop.time() - begun > self._patience.overloaded_s:
                    reason = f"there was no capacity for model {self._model!r} in time: {exc}"
                    raise ModelFailedError(reason, "overloaded") from exc
            except (EngineDeadError, DeploymentUnavailableError, RayError) as exc:
                num_failed += 1
                failure = exc
            except DeadlineExceededError as exc:
                if await self._can_answer():
                    num_late += 1
                    if num_late == _MAX_LATE:
                        raise
                else:  # the generators are being started
                    num_failed += 1
                    failure = exc
            is_over = loop.time() - begun > self._patience.failing_s
            if num_failed >= _MIN_FAILURES and is_over:
                reason = f"model {self._model!r} cannot be served: {failure}"
                raise ModelFailedError(reason, "model_failed") from failure
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_DELAY_S)

    async def _can_answer(self) -> bool:
        try:
            await self._source.check()
        except Exception as exc:  # noqa: BLE001 - whatever makes the generators unavailable; logged
            logger.warning("the generators cannot answer: %s", exc)
            return False
        return True

    def _describe_error(self, reason: str) -> StoredAnswer:
        return StoredAnswer(model=self._model, error=clean_text(reason))


def _find_loss(logprob: float | None) -> float:
    """Return the negative log-probability of a token, limited to a finite one."""
    if logprob is None or not math.isfinite(logprob):
        return _MAX_TOKEN_LOSS
    return min(-logprob, _MAX_TOKEN_LOSS)
