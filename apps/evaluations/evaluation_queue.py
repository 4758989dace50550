"""The queue of evaluations: what clients call, and one evaluation that is computed at a time.

Its state is on disk. An evaluation that was interrupted continues after the last row that is
stored. One that a system error interrupts, such as a full disk, is tried again with backoff while
others are computed, and fails after some attempts.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from apps.errors import ApiError, refuse_full_disk
from apps.evaluations.evaluation_creation import EvaluationCreator
from apps.evaluations.evaluation_objects import EvaluationObject, describe_evaluation
from apps.evaluations.evaluation_record import EvaluationFailure, EvaluationRecord
from apps.evaluations.evaluation_requests import parse_evaluation
from apps.evaluations.evaluation_run import EvaluationRun, write_to_end
from apps.evaluations.evaluation_store import EvaluationStore
from apps.evaluations.interruptions import MAX_ATTEMPTS, RETRY_DELAY_S, Interruptions
from apps.evaluations.model_answers import AnswerSource, ModelFailedError, Patience
from apps.evaluations.row_questions import RowsTooSlowError, describe_slow_rows
from apps.fine_tuning.validation.row_thread import RowThread
from serving.errors import ServingError
from storage.layout import StorageLayout
from system.utf8 import clean_text

logger = logging.getLogger(__name__)

_RESCAN_S = 30.0


class EvaluationQueue:
    """Accepts, computes, cancels and deletes evaluations; use it from one event loop.

    Without a `source` of answers, as with upstreams, none is accepted. `check_claim` raises if
    another queue manages the storage. `patience` is how long requests to models are repeated, and
    `retry_delay_s` the delay before an interrupted evaluation is tried again the first time.
    """

    def __init__(
        self,
        layout: StorageLayout,
        rows: RowThread,
        source: AnswerSource | None,
        check_claim: Callable[[], None],
        patience: Patience = Patience(),  # noqa: B008 - immutable
        retry_delay_s: float = RETRY_DELAY_S,
    ) -> None:
        self._layout = layout
        self._check_claim = check_claim
        self._store = EvaluationStore(layout)
        self._creator = EvaluationCreator(layout, self._store)
        self._rows = rows
        self._source = source
        self._patience = patience
        self._interruptions = Interruptions(retry_delay_s)
        self._changes = asyncio.Lock()
        self._current: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._rescan_at = 0.0

    async def create(self, body: Mapping[str, Any]) -> EvaluationObject:
        """Validate and queue an evaluation; return it as the API shows it.

        Raises `ServingError` or `ApiError` for an evaluation that cannot work, and 429 for too many
        queued ones.
        """
        request = parse_evaluation(body)
        if self._source is None:
            raise ApiError(
                400,
                "this application has no generator of its own ('upstreams' answer), so it cannot "
                "evaluate models; evaluate them with an application without upstreams",
                code="no_generator",
            )
        await asyncio.to_thread(self._check_claim)
        await asyncio.to_thread(self._creator.check_counts)
        record = await self._rows.run(self._creator.prepare, request)
        async with self._changes:
            with refuse_full_disk():
                await asyncio.shield(asyncio.to_thread(self._creator.add, record))
        self._rescan_at = 0.0
        return describe_evaluation(record)

    async def cancel(self, evaluation_id: str) -> EvaluationObject:
        """Cancel an evaluation now; the rows that are done are kept.

        The cancellation completes even if its caller no longer waits. Raises `ApiError` 404 for an
        unknown one, and 409 for one that has ended.
        """
        await asyncio.to_thread(self._check_claim)
        return await asyncio.shield(self._cancel(evaluation_id))

    async def _cancel(self, evaluation_id: str) -> EvaluationObject:
        async with self._changes:
            record = await asyncio.to_thread(self._store.get, evaluation_id)
            if not record.is_final and self._current == evaluation_id:
                await self.stop()
                record = await asyncio.to_thread(self._store.get, evaluation_id)
            if record.is_final:
                message = f"evaluation {evaluation_id!r} has the status {record.status!r}"
                raise ApiError(409, f"{message}: only a queued or running one can be cancelled")
            with refuse_full_disk():
                record = await self._end(record, status="cancelled")
        return describe_evaluation(record)

    async def delete(self, evaluation_id: str) -> None:
        """Delete an evaluation that has ended, or that cannot be read.

        Raises `ApiError` 404 for an unknown one, and 409 for one that has not ended.
        """
        await asyncio.to_thread(self._check_claim)
        async with self._changes:
            try:
                record = await asyncio.to_thread(self._store.get, evaluation_id)
            except ApiError as exc:
                if exc.status == 404:
                    raise
                logger.warning("evaluation %s is deleted unread: %s", evaluation_id, exc)
            else:
                if not record.is_final:
                    message = f"evaluation {evaluation_id!r} is {record.status}"
                    raise ApiError(409, f"{message}: cancel it first", code="in_use")
            await asyncio.shield(asyncio.to_thread(self._store.delete, evaluation_id))

    def begin_next(self) -> None:
        """Start the oldest evaluation that is left, without waiting for the disk or a client.

        A failure is logged.
        """
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start_logged())

    async def _start_logged(self) -> None:
        try:
            await self.start_next()
        except Exception:  # the storage is unavailable for a moment
            logger.exception("no evaluation can be started; this is retried")

    async def start_next(self) -> None:
        """Start the oldest evaluation that is left unless one is being computed."""
        if self._is_computing or self._source is None or time.monotonic() < self._rescan_at:
            return
        self._rescan_at = time.monotonic() + _RESCAN_S
        async with self._changes:
            records = await asyncio.to_thread(self._store.list_all)
            left = {record.id: record for record in records if not record.is_final}
            self._interruptions.keep_only(left)
            due = [record for key, record in left.items() if self._interruptions.is_due(key)]
            if due and not self._is_computing:
                self._current = due[-1].id
                self._task = asyncio.create_task(self._compute(due[-1], self._source))

    async def stop(self) -> None:
        """Stop computing; what is left is computed after the next start."""
        if self._starting is not None:
            self._starting.cancel()
        self._rescan_at = 0.0
        task = self._task
        if task is not None:  # it counts as computing until its last write has ended
            if not task.cancelling():
                task.cancel()
            await asyncio.wait([task])
        if self._task is task:
            self._task = self._current = None

    def close(self) -> None:
        """Stop computing, without waiting for that."""
        for task in (self._starting, self._task):
            if task is not None and not task.get_loop().is_closed():
                task.cancel()

    @property
    def _is_computing(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _compute(self, record: EvaluationRecord, source: AnswerSource) -> None:
        """Compute an evaluation, and record why it failed if it does."""
        run = EvaluationRun(self._layout, self._store, self._rows, source, record, self._patience)
        try:
            await run.complete()
        except ModelFailedError as exc:
            await self._fail(record.id, exc.code, str(exc))
        except RowsTooSlowError as exc:
            refusal = describe_slow_rows(exc, record.max_rows)
            await self._fail(record.id, refusal.code, refusal.message)
        except (ApiError, ServingError) as exc:
            await self._fail(record.id, exc.code, exc.message)
        except OSError as exc:  # a full disk, for example
            await self._interrupt(record.id, run.num_done, exc)
        except Exception:
            logger.exception("evaluation %s failed", record.id)
            message = "internal error; the server's log has the details"
            await self._fail(record.id, "internal_error", message)
        else:
            self._rescan_at = 0.0

    async def _interrupt(self, evaluation_id: str, num_done: int, exc: OSError) -> None:
        """Plan another attempt at an evaluation after a system error, or fail it."""
        self._rescan_at = 0.0  # others are computed in the meantime
        num_attempts = self._interruptions.add(evaluation_id, num_done)
        logger.error("attempt %d at %s was interrupted", num_attempts, evaluation_id, exc_info=exc)
        if num_attempts >= MAX_ATTEMPTS:
            reason = exc.strerror or type(exc).__name__
            message = (
                f"{num_attempts} attempts were interrupted by a system error ({reason}); the "
                "server's log has the details. Create it again once the cause is removed"
            )
            await self._fail(evaluation_id, "system_error", message)
            return
        try:
            record = await asyncio.to_thread(self._store.get, evaluation_id)
            await write_to_end(self._store.replace, record.model_copy(update={"status": "queued"}))
        except (ApiError, OSError) as failure:  # the next attempt does not need it
            logger.warning("evaluation %s cannot be shown as queued: %s", evaluation_id, failure)

    async def _fail(self, evaluation_id: str, code: str | None, message: str) -> None:
        self._rescan_at = 0.0
        message = clean_text(message)
        logger.warning("evaluation %s failed: %s", evaluation_id, message)
        text = message.replace(str(self._layout.root), "<storage>")
        failure = EvaluationFailure(code=code, message=text)
        try:
            record = await asyncio.to_thread(self._store.get, evaluation_id)
            await self._end(record, status="failed", error=failure)
        except (ApiError, OSError):
            logger.exception("the failure of evaluation %s cannot be recorded", evaluation_id)
            self._rescan_at = time.monotonic() + _RESCAN_S

    async def _end(self, record: EvaluationRecord, **changes: object) -> EvaluationRecord:
        ended = record.model_copy(update={"finished_at": int(time.time()), **changes})
        await write_to_end(self._store.replace, ended)
        return ended
