"""One evaluation as it is computed: the rows that are left are asked, and their answers stored.

Rows are asked in blocks, each by one model after the other: memory may fit only one of the models
at a time, and loading one takes seconds.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple, ParamSpec

from apps.evaluations.evaluation_record import EvaluationRecord, StoredAnswer, StoredRow
from apps.evaluations.evaluation_store import EvaluationStore
from apps.evaluations.model_answers import (
    MAX_TEXT_CHARACTERS,
    AnswerSource,
    ModelAnswers,
    Patience,
)
from apps.evaluations.model_tally import ModelTally
from apps.evaluations.row_questions import Question, read_questions
from apps.fine_tuning.validation.row_thread import RowThread
from storage.layout import StorageLayout

_P = ParamSpec("_P")

MAX_REQUESTS = 4
"""Most requests at once: the rest of a generator's batch is free for chats."""
_BLOCK_ROWS = 16
_MAX_READ_S = 20.0
_RECORD_INTERVAL_S = 2.0


class _AskedRow(NamedTuple):
    """A row with the question for each model, in the order of the models."""

    id: str
    file: str
    number: int
    questions: Sequence[Question]


class EvaluationRun:
    """Computes an evaluation from where it stopped; one at a time."""

    def __init__(
        self,
        layout: StorageLayout,
        store: EvaluationStore,
        rows: RowThread,
        source: AnswerSource,
        record: EvaluationRecord,
        patience: Patience,
    ) -> None:
        self._layout = layout
        self._store = store
        self._rows = rows
        self._record = record
        self._tallies = [ModelTally() for _ in record.models]
        self._models = [
            ModelAnswers(source, one.model, record.max_tokens, patience) for one in record.models
        ]
        self._recorded_at = 0.0

    @property
    def num_done(self) -> int:
        """The number of rows that are known to be done."""
        return self._tallies[0].num_rows

    async def complete(self) -> None:
        """Ask what is left, and record the success.

        Raises `ModelFailedError`, and `ApiError` or `ServingError` if the rows cannot be read.
        """
        done = await asyncio.to_thread(self._read_done)
        await self._record_state(status="running")
        rows = await self._read_rows()
        await self._record_state(num_rows=len(rows))
        left = [row for row in rows if row.id not in done]
        for start in range(0, len(left), _BLOCK_ROWS):
            await self._ask_block(left[start : start + _BLOCK_ROWS])
        await asyncio.to_thread(self._store.flush_rows, self._record.id)
        await self._record_state(status="succeeded", finished_at=int(time.time()))

    def _read_done(self) -> set[str]:
        done = set()
        for row in self._store.iterate_rows(self._record.id):
            if row.id not in done and len(row.answers) == len(self._tallies):
                done.add(row.id)
                self._add(row.answers)
        return done

    def _add(self, answers: Sequence[StoredAnswer]) -> None:
        for tally, answer in zip(self._tallies, answers, strict=True):
            tally.add(answer)

    async def _read_rows(self) -> list[_AskedRow]:
        """Read the rows for all models, in the order of the files."""
        found: list[_AskedRow] = []
        for place, part in enumerate(self._record.rows):
            num_left = self._record.max_rows - len(found)
            by_model = [
                await self._rows.run(
                    read_questions,
                    self._layout,
                    part,
                    one.model,
                    self._record.training,
                    num_left,
                    _MAX_READ_S,
                )
                for one in self._record.models
            ]
            numbers = sorted(set().union(*by_model))
            for number in numbers[:num_left]:
                questions = [own.get(number, _MISSING) for own in by_model]
                row_id = f"row-{number}" if place == 0 else f"row-{place + 1}-{number}"
                found.append(_AskedRow(row_id, part.file, number, questions))
        return found

    async def _ask_block(self, block: Sequence[_AskedRow]) -> None:
        """Ask a block of rows; store each row, in order, once all models have answered it."""
        answers: list[list[StoredAnswer]] = [[] for _ in block]
        for place, model in enumerate(self._models):
            is_last = place == len(self._models) - 1
            async with aclosing(self._ask_all(model, place, block)) as arriving:
                number = 0
                async for answer in arriving:
                    answers[number].append(answer)
                    if is_last:
                        await self._store_row(block[number], answers[number])
                    number += 1

    async def _ask_all(
        self, model: ModelAnswers, place: int, block: Sequence[_AskedRow]
    ) -> AsyncGenerator[StoredAnswer, None]:
        """Yield the answers of a model to all rows of a block, in their order."""
        slots = asyncio.Semaphore(MAX_REQUESTS)

        async def ask(row: _AskedRow) -> StoredAnswer:
            async with slots:
                return await model.answer(row.questions[place], f"{self._record.id}-{row.id}")

        tasks = [asyncio.create_task(ask(row)) for row in block]
        try:
            for task in tasks:
                yield await asyncio.shield(task)  # cancelled below, with all others at once
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _store_row(self, row: _AskedRow, answers: list[StoredAnswer]) -> None:
        shown = next((one for one in row.questions if one.fault is None), row.questions[0])
        stored = StoredRow(
            id=row.id,
            file=row.file,
            number=row.number,
            prompt=shown.prompt[:MAX_TEXT_CHARACTERS],
            expected=shown.expected[:MAX_TEXT_CHARACTERS],
            answers=tuple(answers),
        )
        await write_to_end(self._store.add_row, self._record.id, stored)
        self._add(answers)
        if time.monotonic() - self._recorded_at > _RECORD_INTERVAL_S:
            await self._record_state()

    async def _record_state(self, **changes: object) -> None:
        """Write the record with the present figures, and with changes."""
        models = [
            tally.describe(figures)
            for tally, figures in zip(self._tallies, self._record.models, strict=True)
        ]
        figures = {"models": tuple(models), "num_done": self.num_done}
        self._record = self._record.model_copy(update={**figures, **changes})
        self._recorded_at = time.monotonic()
        await write_to_end(self._store.replace, self._record)


async def write_to_end(write: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call a function that writes in a thread; a cancellation waits for its end.

    So no write of a cancelled evaluation follows those of its successor.
    """
    writing = asyncio.create_task(asyncio.to_thread(write, *args, **kwargs))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await writing
        raise


_MISSING = Question(fault="the row was not found when the file was read for this model")
