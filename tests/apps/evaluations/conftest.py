"""Generators that answer as a test decides, and a queue of evaluations that asks them."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from apps.evaluations.evaluation_objects import EvaluationObject
from apps.evaluations.evaluation_queue import EvaluationQueue
from apps.evaluations.evaluation_record import EvaluationRecord, StoredAnswer, StoredRow
from apps.evaluations.evaluation_store import EvaluationStore
from apps.evaluations.model_answers import Patience
from apps.file_store import FileStore
from apps.fine_tuning.validation.row_thread import RowThread
from serving.errors import InvalidRequestError
from serving.openai.completion import CompletionRequest
from serving.store.model_store import ModelStore
from serving.wire import (
    AnswerOrigin,
    Piece,
    TokenLogprob,
    TokenText,
    ValidRequest,
    WholeAnswer,
)
from storage.layout import StorageLayout
from tests.tiny_model import CONTEXT_LENGTH

LOGPROB = -0.5
"""The log-probability of every token."""


def make_rows(num_rows: int) -> list[dict[str, str]]:
    return [
        {"prompt": f"What is {number}?", "completion": f"It is {number}."}
        for number in range(1, num_rows + 1)
    ]


def answer_exactly(prompt: str) -> str:
    """Return the expected answer of a row of `make_rows`."""
    return f"It is {prompt.rpartition('What is ')[2].partition('?')[0]}."


@dataclass
class ScriptedSource:
    """Generators with one function per model that answers the text of a prompt.

    While `gate` is cleared, requests wait. `failures` are raised first, one per request.
    """

    tokenizer: Any
    answers: dict[str, Callable[[str], str]] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_open: int = 0
    most_open: int = 0
    num_cancelled: int = 0
    is_starting: bool = False

    async def check(self) -> None:
        if self.is_starting:
            raise RuntimeError("no replica is ready")

    async def answer(
        self, request: ValidRequest, body: Mapping[str, Any], request_id: str
    ) -> WholeAnswer:
        assert isinstance(request, CompletionRequest)
        (ids,) = request.prompt
        assert not isinstance(ids, str)
        with self._count():
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop()
        if len(ids) >= CONTEXT_LENGTH:
            raise InvalidRequestError(f"the prompt has {len(ids)} tokens")
        if request.max_tokens == 0:
            return self._score(request.model, list(ids))
        text = str(self.tokenizer.decode(list(ids)))
        assert text.endswith("<|im_start|>assistant\n"), text
        self.asked[request.model, text] += 1
        found = self.answers.get(request.model, answer_exactly)(text)
        return _wrap(request.model, Piece(0, found, "stop", len(ids), 3))

    def _score(self, model: str, ids: list[int]) -> WholeAnswer:
        logprobs = [None, *[LOGPROB] * (len(ids) - 1)]
        tokens = tuple(TokenLogprob(TokenText("x", None), logprob) for logprob in logprobs)
        return _wrap(model, Piece(0, "", "length", len(ids), 0, tokens))

    @contextmanager
    def _count(self) -> Iterator[None]:
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            yield
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_open -= 1


def _wrap(model: str, piece: Piece) -> WholeAnswer:
    origin = AnswerOrigin(model, None, None, None, "fp")
    return WholeAnswer(origin, (piece,), piece.num_prompt_tokens)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def source(layout: StorageLayout, tiny_model: Path) -> ScriptedSource:
    """Generators of the models 'tiny' and 'other', which answer every row exactly."""
    ModelStore(layout).add(tiny_model, "other")
    source = ScriptedSource(AutoTokenizer.from_pretrained(tiny_model))
    source.gate.set()
    return source


@pytest.fixture
def row_thread() -> Iterator[RowThread]:
    rows = RowThread()
    yield rows
    rows.close()


def open_queue(
    layout: StorageLayout, rows: RowThread, source: ScriptedSource | None
) -> EvaluationQueue:
    patience = Patience(first_delay_s=0.0, failing_s=0.0)
    return EvaluationQueue(layout, rows, source, lambda: None, patience, retry_delay_s=0.0)


@pytest.fixture
def evaluations(
    layout: StorageLayout, row_thread: RowThread, source: ScriptedSource
) -> Iterator[EvaluationQueue]:
    queue = open_queue(layout, row_thread, source)
    yield queue
    queue.close()


@pytest.fixture
def ten_rows(layout: StorageLayout) -> str:
    return add_file(layout, make_rows(10))


def add_file(layout: StorageLayout, rows: list[Any], file_id: str = "file-rows") -> str:
    """Store rows as a file; a row that is a text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    FileStore(layout).add(file_id, "".join(f"{line}\n" for line in lines).encode(), "rows.jsonl")
    return file_id


def read_rows(layout: StorageLayout, evaluation_id: str) -> list[StoredRow]:
    return list(EvaluationStore(layout).iterate_rows(evaluation_id))


async def finish(
    queue: EvaluationQueue, layout: StorageLayout, created: EvaluationObject
) -> EvaluationRecord:
    """Let the queue compute until an evaluation has ended; return its record."""
    async with asyncio.timeout(60):
        while True:
            await queue.start_next()
            record = EvaluationStore(layout).get(created["id"])
            if record.is_final:
                return record
            await asyncio.sleep(0.01)


def add_stored(layout: StorageLayout, evaluation_id: str, **changes: Any) -> EvaluationRecord:
    """Store an evaluation that has ended, with one row."""
    record = EvaluationRecord.model_validate(
        {
            "id": evaluation_id,
            "status": "succeeded",
            "created_at": 1,
            "max_rows": 1,
            "max_tokens": 1,
            "rows": [{"file": "file-rows"}],
            "models": [{"model": "tiny", "requested": "latest"}],
            **changes,
        }
    )
    store = EvaluationStore(layout)
    store.add(record)
    answers = tuple(StoredAnswer(model=one.model, text="b") for one in record.models)
    row = StoredRow(id="row-1", file="f", number=1, prompt="a", expected="b", answers=answers)
    store.add_row(evaluation_id, row)
    return record
