"""The outcomes of hand-overs: their events, and when a failed one is retried."""

import logging
import math
import time
from dataclasses import dataclass

from serving.metrics import GeneratorMetrics
from serving.store.handover_log import HandoverEvent, HandoverLog, Outcome
from serving.store.stored_model import StoredModel

logger = logging.getLogger(__name__)

MAX_LOSSES = 6
"""After so many losses of the process that loads a model, the hand-over is not retried."""
LOSS_DELAY_S = 5.0
"""Seconds before the second attempt; doubles before each further attempt."""


@dataclass(frozen=True)
class _Failure:
    """A failed move of an alias to a model; `retry_at` is a monotonic time in seconds."""

    model_id: str
    outcome: Outcome
    num_losses: int
    """How many times the process that loads the model has ended."""
    retry_at: float


class HandoverOutcomes:
    """Records the outcome of each move of an alias, and the failures that are not resolved yet."""

    def __init__(self, metrics: GeneratorMetrics, log: HandoverLog) -> None:
        self._metrics = metrics
        self._log = log
        self._failures: dict[str, _Failure] = {}

    def may_try(self, alias: str, model_id: str) -> bool:
        """Return whether the alias may move to the model now."""
        failure = self._failures.get(alias)
        if failure is None or failure.model_id != model_id:
            return True
        return time.monotonic() >= failure.retry_at

    def clear_failure(self, alias: str) -> None:
        """Forget the failure of an alias that serves the model it points to."""
        self._failures.pop(alias, None)

    def record_failure(
        self,
        alias: str,
        outcome: Outcome,
        model_id: str,
        old: StoredModel | None,
        reason: str,
        *,
        num_losses: int = 0,
        retry_at: float = 0.0,
    ) -> None:
        """Record that an alias did not move to a model; the event is written once per outcome."""
        before = self._failures.get(alias)
        if before is None or (before.model_id, before.outcome) != (model_id, outcome):
            stays = "no model" if old is None else f"model {old.id!r}"
            self.record(alias, outcome, model_id, old, f"it stays with {stays}: {reason}")
        self._failures[alias] = _Failure(model_id, outcome, num_losses, retry_at)

    def record_loss(self, alias: str, model_id: str, old: StoredModel | None, reason: str) -> None:
        """Schedule a retry with backoff: the model may or may not be the cause of the loss."""
        before = self._failures.get(alias)
        num_losses = 1 + (before.num_losses if before and before.model_id == model_id else 0)
        is_refused = num_losses >= MAX_LOSSES
        delay_s = math.inf if is_refused else LOSS_DELAY_S * 2 ** (num_losses - 1)
        self.record_failure(
            alias,
            "refused" if is_refused else "postponed",
            model_id,
            old,
            reason,
            num_losses=num_losses,
            retry_at=time.monotonic() + delay_s,
        )

    def record(
        self, alias: str, outcome: Outcome, model_id: str, old: StoredModel | None, message: str
    ) -> None:
        """Log an outcome, count it and write its event."""
        before = None if old is None else old.id
        logger.info("%s, model %s (before: %s): %s: %s", alias, model_id, before, outcome, message)
        if old is None and outcome == "moved":  # the first load, not a hand-over
            return
        self._metrics.record_handover(alias, outcome)
        try:
            self._log.add(HandoverEvent(alias, outcome, model_id, before, message))
        except OSError:
            logger.exception("the event of a hand-over cannot be written")
