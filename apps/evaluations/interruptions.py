"""Evaluations that a system error interrupted: how often each is tried again, and when."""

import time
from collections.abc import Collection
from typing import NamedTuple

MAX_ATTEMPTS = 8
"""Attempts without a further row until an evaluation fails; with the delays, half an hour."""
RETRY_DELAY_S = 30.0
_MAX_DELAY_S = 600.0


class _Interruption(NamedTuple):
    num_attempts: int
    num_done: int
    retry_at: float


class Interruptions:
    """Plans the next attempt at each interrupted evaluation, with backoff; kept in memory.

    Other evaluations are computed until then.
    """

    def __init__(self, first_delay_s: float = RETRY_DELAY_S) -> None:
        self._first_delay_s = first_delay_s
        self._found: dict[str, _Interruption] = {}

    def add(self, evaluation_id: str, num_done: int) -> int:
        """Plan the next attempt after an interruption; return the number of attempts so far.

        Attempts before the last progress, measured in rows that are done, do not count.
        """
        num_attempts = 1
        before = self._found.get(evaluation_id)
        if before is not None and num_done <= before.num_done:
            num_attempts, num_done = before.num_attempts + 1, before.num_done
        delay_s = min(self._first_delay_s * 2 ** (num_attempts - 1), _MAX_DELAY_S)
        retry_at = time.monotonic() + delay_s
        self._found[evaluation_id] = _Interruption(num_attempts, num_done, retry_at)
        return num_attempts

    def is_due(self, evaluation_id: str) -> bool:
        """Return whether an evaluation may be computed now."""
        found = self._found.get(evaluation_id)
        return found is None or time.monotonic() >= found.retry_at

    def keep_only(self, evaluation_ids: Collection[str]) -> None:
        """Forget all others: they have ended."""
        self._found = {key: one for key, one in self._found.items() if key in evaluation_ids}
