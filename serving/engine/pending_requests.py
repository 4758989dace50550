"""The requests that an engine's core works on: admission, load, and delivery of its reports."""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from serving.engine.messages import Progress, Report, name_request
from serving.errors import InvalidRequestError, OverloadedError
from serving.settings import EngineSettings

_MAX_RETRY_AFTER_S = 30


@dataclass(frozen=True)
class EngineLoad:
    """The load of an engine; `cache_use` is the fraction of its cache that is in use."""

    num_running: int
    num_waiting: int
    cache_use: float


@dataclass(frozen=True)
class PendingRequest:
    """A request that waits for progress from the core; None in `queue` signals its deadline."""

    id: str
    loop: asyncio.AbstractEventLoop
    queue: "asyncio.Queue[Progress | None]" = field(default_factory=asyncio.Queue)

    async def receive(self) -> list[Progress | None]:
        """Wait for progress, and return everything that has arrived."""
        arrived = [await self.queue.get()]
        while not self.queue.empty():
            arrived.append(self.queue.get_nowait())
        return arrived


class PendingRequests:
    """Admits requests up to the capacity of an engine and delivers the core's reports to them.

    Use from one event loop, except `deliver`, which the core's threads call.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._numbers = itertools.count()
        self._pending: dict[str, PendingRequest] = {}
        self._load = EngineLoad(0, 0, 0.0)
        self._num_active = 0
        self._mean_duration_s = 1.0

    @property
    def num_active(self) -> int:
        """Number of requests that are running or queued."""
        return self._num_active

    def find_load(self) -> EngineLoad:
        """Return the load at the core's last report."""
        if not self._num_active:
            return EngineLoad(0, 0, 0.0)
        num_running = min(self._load.num_running, self._num_active)
        return replace(
            self._load, num_running=num_running, num_waiting=self._num_active - num_running
        )

    def check_capacity(self, num_requests: int = 1) -> None:
        """Raise `OverloadedError` if `num_requests` more requests cannot be queued now.

        Raises `InvalidRequestError` if so many can never be queued.
        """
        # The manager's own queue limit does not help: at every step its thread moves the queue into
        # an unbounded list.
        capacity = self._settings.capacity
        if num_requests > capacity:
            raise InvalidRequestError(
                f"{num_requests} answers are wanted at once, this server takes {capacity} at most"
            )
        if self._num_active + num_requests <= capacity:
            return
        rounds = self._num_active / self._settings.max_running_requests
        raise OverloadedError(
            f"{self._num_active} requests are running or waiting, this model takes {capacity}",
            retry_after_s=min(
                _MAX_RETRY_AFTER_S, max(1, math.ceil(rounds * self._mean_duration_s))
            ),
        )

    @contextmanager
    def register(
        self, timeout_s: float, cancel: Callable[[str], None], adapter: int = 0
    ) -> Iterator[PendingRequest]:
        """Register a new request for the core's reports; call `cancel` unless it has finished.

        `adapter` is the number of the request's adapter, 0 for the model itself.
        """
        loop = asyncio.get_running_loop()
        request = PendingRequest(name_request(next(self._numbers), adapter), loop)
        deadline = loop.call_later(timeout_s, request.queue.put_nowait, None)
        self._pending[request.id] = request
        self._num_active += 1
        try:
            yield request
        finally:
            self._num_active -= 1
            deadline.cancel()
            if self._pending.pop(request.id, None) is not None:
                cancel(request.id)

    def record_duration(self, duration_s: float) -> None:
        """Include the duration of an answer in the mean, from which `retry_after_s` is found."""
        self._mean_duration_s += 0.1 * (duration_s - self._mean_duration_s)

    def deliver(self, report: Report | None) -> None:
        """Deliver a report to the waiting requests, one callback per event loop.

        None means that the core's process has ended.
        """
        if report is None:
            error = "its process has ended"
            report = Report([Progress(name, (), (), True, error) for name in list(self._pending)])
        else:
            self._load = EngineLoad(report.num_running, 0, report.cache_use)
        found: dict[asyncio.AbstractEventLoop, list[tuple[PendingRequest, Progress]]] = {}
        for progress in report.progress:
            if progress.is_finished:
                request = self._pending.pop(progress.request_id, None)
            else:
                request = self._pending.get(progress.request_id)
            if request is not None:  # not cancelled
                found.setdefault(request.loop, []).append((request, progress))
        for loop, arrived in found.items():
            with suppress(RuntimeError):  # the loop is closed, so no request waits
                loop.call_soon_threadsafe(_enqueue, arrived)


def _enqueue(arrived: Sequence[tuple[PendingRequest, Progress]]) -> None:
    for request, progress in arrived:
        request.queue.put_nowait(progress)
