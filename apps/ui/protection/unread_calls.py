"""Limits on what the page keeps for visitors: unread results and open streams.

Gradio keeps the results of a session until its event stream is read, without a limit on their
number.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MAX_CALLS = 16
MAX_UNREAD_EVENTS = 256
MAX_SESSIONS = 128
MAX_STREAMS = 384
MAX_STREAMS_PER_KEY = 128
UNREAD_LIFETIME_S = 300.0  # longer than any function takes


@dataclass
class _Unread:
    num_calls: int
    last_call: float


class UnreadCalls:
    """Counter of the calls of sessions that have no open event stream.

    `count_events` returns the number of unread events that Gradio keeps for a session. `forget`
    drops all that Gradio keeps for a session; it is called if the results were not read within
    `UNREAD_LIFETIME_S` seconds. Not thread-safe: for use in one event loop.
    """

    def __init__(
        self,
        count_events: Callable[[str], int],
        forget: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count_events = count_events
        self._forget = forget
        self._clock = clock
        self._unread: dict[str, _Unread] = {}
        self._num_readers: Counter[str] = Counter()

    def add(self, session: str) -> str | None:
        """Count a call; return why it is refused, or None if it is accepted."""
        if self._count_events(session) >= MAX_UNREAD_EVENTS:
            return f"this session has {MAX_UNREAD_EVENTS} unread events"
        if self._num_readers[session]:
            return None
        self._forget_old()
        found = self._unread.get(session)
        if found is None and len(self._unread) >= MAX_SESSIONS:
            return "too many sessions have unread results; try again later"
        if found is not None and found.num_calls >= MAX_CALLS:
            return f"this session has {MAX_CALLS} unread results; read them first"
        num_calls = 1 if found is None else found.num_calls + 1
        self._unread[session] = _Unread(num_calls, self._clock())
        return None

    @contextmanager
    def read(self, session: str) -> Iterator[None]:
        """Stop counting the calls of a session while its event stream is open."""
        self._unread.pop(session, None)
        self._num_readers[session] += 1
        try:
            yield
        finally:
            self._num_readers[session] -= 1
            self._num_readers += Counter()  # removes sessions without an open stream

    def _forget_old(self) -> None:
        oldest = self._clock() - UNREAD_LIFETIME_S
        for session in [name for name, found in self._unread.items() if found.last_call < oldest]:
            del self._unread[session]
            self._forget(session)


class StreamSlots:
    """Limit on open streams, in total and per key, to leave room for requests and other keys."""

    def __init__(self) -> None:
        self._num_by_key: Counter[str | None] = Counter()

    def find_refusal(self, key: str | None) -> str | None:
        """Return why another stream is refused, or None; `key` is None if no key is required."""
        if self._num_by_key.total() >= MAX_STREAMS:
            return f"{MAX_STREAMS} tabs of the page are open, which is the maximum"
        if key is not None and self._num_by_key[key] >= MAX_STREAMS_PER_KEY:
            return f"{MAX_STREAMS_PER_KEY} tabs of this key are open, which is the maximum"
        return None

    @contextmanager
    def count_stream(self, key: str | None) -> Iterator[None]:
        """Count one stream while the body runs."""
        self._num_by_key[key] += 1
        try:
            yield
        finally:
            self._num_by_key[key] -= 1
            self._num_by_key += Counter()
