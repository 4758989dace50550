"""Requests and tokens per minute, counted per key.

Each limit is a token bucket: it contains the amount of one minute, and refills at a constant rate.
Tokens of a response are known only at its end, so a request is admitted while the bucket is not
empty, and the tokens that it used are subtracted afterwards; the level may then be negative.
Libraries for rate limits decide before the cost is known, so they are not used. Counts are in the
memory of each replica of the API: with several replicas a key may use up to its limit on each of
them, and a restart resets them.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from apps.access.gate import Principal

_MINUTE_S = 60.0
_MAX_KEYS = 10_000
BYTES_PER_TOKEN = 4  # of English text, roughly; only until the true number is known


class Bucket:
    """A token bucket: the amount of one minute, refilled at a constant rate."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute, self._clock = per_minute, clock
        self._level, self._at = float(per_minute), clock()

    @property
    def level(self) -> float:
        """The remaining amount; negative after too much was taken."""
        now = self._clock()
        refilled = self._level + (now - self._at) * self.per_minute / _MINUTE_S
        self._level, self._at = min(float(self.per_minute), refilled), now
        return self._level

    def take(self, amount: float) -> None:
        """Subtract an amount, or add it if negative; the level may be negative afterwards."""
        self._level = min(float(self.per_minute), self.level - amount)

    def wait_s(self, level: float) -> float:
        """Return the seconds until the bucket reaches `level`."""
        return max(0.0, (level - self.level) * _MINUTE_S / self.per_minute)


class Refusal(NamedTuple):
    """A request that exceeds a limit."""

    kind: str
    """The limit that is exceeded: requests or tokens."""
    limit: int
    retry_after_s: float


@dataclass
class KeyBuckets:
    """The limits of one key."""

    requests: Bucket | None
    tokens: Bucket | None

    def admit(self, num_tokens: int) -> Refusal | None:
        """Take a request, and tokens that it may use; return a refusal if that exceeds a limit."""
        if self.requests is not None and self.requests.level < 1:
            return Refusal("requests", self.requests.per_minute, self.requests.wait_s(1))
        if self.tokens is not None and num_tokens and self.tokens.level < 1:
            return Refusal("tokens", self.tokens.per_minute, self.tokens.wait_s(1))
        if self.requests is not None:
            self.requests.take(1)
        self.correct(0, num_tokens)
        return None

    def correct(self, reserved: int, used: int) -> None:
        """Replace the reserved tokens by those that were used."""
        if self.tokens is not None:
            self.tokens.take(used - reserved)

    def describe(self) -> dict[str, str]:
        """Return OpenAI's headers with the limits and the remaining amounts."""
        headers = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(bucket.per_minute)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level)))
                headers[f"x-ratelimit-reset-{name}"] = show_duration(
                    bucket.wait_s(bucket.per_minute)
                )
        return headers


class RateLimiter:
    """The buckets of all recently used keys."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, KeyBuckets] = {}

    def find(self, principal: Principal) -> KeyBuckets | None:
        """Return the buckets of a key; None for one without limits."""
        if principal.key_id is None or not (
            principal.requests_per_minute or principal.tokens_per_minute
        ):
            return None
        found = self._buckets.pop(principal.key_id, None)
        wanted = (principal.requests_per_minute, principal.tokens_per_minute)
        if found is None or _read_limits(found) != wanted:
            requests, tokens = (self._make_bucket(limit) for limit in wanted)
            found = KeyBuckets(requests, tokens)
        self._buckets[principal.key_id] = found  # the most recently used is the last one
        if len(self._buckets) > _MAX_KEYS:
            del self._buckets[next(iter(self._buckets))]
        return found

    def _make_bucket(self, limit: int | None) -> Bucket | None:
        return None if limit is None else Bucket(limit, self._clock)


def show_duration(seconds: float) -> str:
    """Write a duration as OpenAI does: `350ms`, `4s`, `1m12s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _read_limits(buckets: KeyBuckets) -> tuple[int | None, int | None]:
    requests, tokens = buckets.requests, buckets.tokens
    return (
        None if requests is None else requests.per_minute,
        None if tokens is None else tokens.per_minute,
    )
