"""Creation of evaluations: a request is validated as far as that takes seconds."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from apps.errors import ApiError, InvalidInputError
from apps.evaluations.evaluation_record import EvaluationRecord, ModelFigures, RowPart
from apps.evaluations.evaluation_requests import EvaluationRequest, name_model_field
from apps.evaluations.evaluation_store import EvaluationStore
from apps.evaluations.row_questions import RowsTooSlowError, describe_slow_rows, read_questions
from apps.evaluations.row_sources import choose_file, choose_validation_rows
from apps.file_store import FileStore
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.layout import StorageLayout, new_id

MAX_QUEUED = 8
MAX_EVALUATIONS = 1000
_NUM_CHECKED_ROWS = 20
_MAX_CHECK_S = 10.0


class EvaluationCreator:
    """Creates evaluations from requests."""

    def __init__(self, layout: StorageLayout, store: EvaluationStore) -> None:
        self._layout = layout
        self._store = store

    def check_counts(self) -> None:
        """Raise `ApiError` if no further evaluation is allowed: 429 if too many are queued."""
        num_queued = sum(record.status == "queued" for record in self._store.list_all())
        if num_queued >= MAX_QUEUED:
            raise ApiError(
                429,
                f"{num_queued} evaluations are queued, the most that can be; wait until one has "
                "ended, or cancel one",
                code="too_many_queued_evaluations",
            )
        if self._store.count() >= MAX_EVALUATIONS:
            raise ApiError(
                409,
                f"{MAX_EVALUATIONS} evaluations are stored, the most that can be; delete some",
                code="too_many_evaluations",
            )

    def prepare(self, request: EvaluationRequest) -> EvaluationRecord:
        """Check everything that can be checked in a few seconds; return the record."""
        models = self._resolve_models(request.models)
        if request.file is not None:
            chosen = choose_file(self._layout, request.file)
        else:
            assert request.job is not None, "the request has one of both"
            chosen = choose_validation_rows(self._layout, request.job, request.max_rows)
        training = {**chosen.training, **request.training}
        num_checked = min(request.max_rows, _NUM_CHECKED_ROWS)
        for place, model in enumerate(models):
            with name_model_field(place):
                self._check_parts(chosen.parts, model, training, num_checked)
        return EvaluationRecord(
            id=new_id("eval"),
            created_at=int(time.time()),
            file=request.file,
            job=request.job,
            max_rows=request.max_rows,
            max_tokens=request.max_tokens,
            rows=chosen.parts,
            training=training,
            models=tuple(
                ModelFigures(model=model.id, requested=name)
                for model, name in zip(models, request.models, strict=True)
            ),
        )

    def _resolve_models(self, names: Sequence[str]) -> list[StoredModel]:
        store = ModelStore(self._layout)
        models = []
        for place, name in enumerate(names):
            with name_model_field(place):
                model = store.resolve(name)
                model.check_answers("text")
            models.append(model)
        if len({model.id for model in models}) < len(models):
            raise InvalidInputError(
                f"{names[0]!r} and {names[1]!r} are the same model, {models[0].id!r}: expected two "
                "different models, or one",
                param="models",
            )
        return models

    def _check_parts(
        self,
        parts: Sequence[RowPart],
        model: StoredModel,
        training: Mapping[str, Any],
        num_rows: int,
    ) -> None:
        """Raise `InvalidInputError` if a model can be asked none of the first rows of a file.

        Files for which no time is left are read only when the evaluation runs.
        """
        deadline = time.monotonic() + _MAX_CHECK_S
        for part in parts:
            try:
                self._check_rows(part, model, training, num_rows, deadline - time.monotonic())
            except RowsTooSlowError as exc:
                if exc.num_read == 0 and part == parts[0]:
                    raise describe_slow_rows(exc, num_rows) from exc
                return

    def _check_rows(
        self,
        part: RowPart,
        model: StoredModel,
        training: Mapping[str, Any],
        num_rows: int,
        max_s: float,
    ) -> None:
        found = read_questions(self._layout, part, model.id, training, num_rows, max_s)
        if not found:
            raise InvalidInputError(f"file {part.file!r} has no rows", param="file")
        faults = [(number, one.fault) for number, one in found.items() if one.fault is not None]
        if len(faults) == len(found):
            number, fault = faults[0]
            raise InvalidInputError(
                f"model {model.id!r} can be asked none of the first {len(found)} rows of file "
                f"{part.file!r}; row {number}: {fault}",
                param="file",
                code="invalid_rows",
            )

    def add(self, record: EvaluationRecord) -> None:
        """Add an evaluation, while its files and models are locked against deletion.

        Raises `ApiError` or `ServingError` if one has been deleted, or for too many evaluations.
        """
        self.check_counts()
        models = ModelStore(self._layout)
        with ExitStack() as locks:
            for one in record.models:
                locks.enter_context(models.resolve(one.model).lock_shared())
            for part in record.rows:
                locks.enter_context(FileStore(self._layout).lock_shared(part.file))
            self._store.add(record)
