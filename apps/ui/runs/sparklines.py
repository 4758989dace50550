"""The loss of each listed run as a small curve, and its newest validation figure.

Both are read again only when a run has come further, and of a running one at most every few
seconds. A key that may list runs may read their metrics, so what one visitor's key has read is
shown to others.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.resources import Job, Metrics
from apps.ui.runs.curves import is_finite_number

MAX_POINTS = 24
_MAX_KEPT = 2000
_MIN_AGE_S = 6.0
_NUM_REQUESTS = 6
PATIENCE_S = 0.6
"""How long the list waits for curves: the first time, the metrics of long runs take seconds."""


class Sparkline(NamedTuple):
    """A few losses of a run, oldest first, and the newest value of the figure it is judged by."""

    losses: tuple[float, ...] = ()
    metric: str = ""
    value: float | None = None


class _Entry(NamedTuple):
    line: Sparkline
    step: int
    status: str
    read_at: float


class Sparklines:
    """Reads and keeps the sparklines of runs."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_NUM_REQUESTS)

    async def find(self, client: ApiClient, jobs: Sequence[Job]) -> dict[str, Sparkline]:
        """Return the sparklines of jobs by their ids, as far as they are read in a short time.

        The others are read in the background, and returned by a later call.
        """
        for job in jobs:
            if job.id not in self._tasks and self._is_outdated(job):
                task = asyncio.create_task(self._read(client, job))
                self._tasks[job.id] = task
                task.add_done_callback(partial(self._forget_task, job.id))
        if reading := [self._tasks[job.id] for job in jobs if job.id in self._tasks]:
            await asyncio.wait(reading, timeout=PATIENCE_S)
        return {job.id: self._entries[job.id].line for job in jobs if job.id in self._entries}

    async def _read(self, client: ApiClient, job: Job) -> None:
        async with self._slots:
            try:
                found = await client.job_outputs.list_metrics(job.id, max_points=MAX_POINTS)
            except ApiClientError:  # it was deleted, or the next refresh reads it
                return
        line = summarise(found, str(job.training.get("best_metric") or "loss"))
        self._entries[job.id] = _Entry(line, _read_step(job), job.status, time.monotonic())
        while len(self._entries) > _MAX_KEPT:
            self._entries.popitem(last=False)

    def _forget_task(self, run_id: str, _: asyncio.Task[None]) -> None:
        del self._tasks[run_id]

    def _is_outdated(self, job: Job) -> bool:
        if not (step := _read_step(job)):
            return False
        entry = self._entries.get(job.id)
        if entry is None or entry.status != job.status:
            return True
        return entry.step != step and time.monotonic() - entry.read_at > _MIN_AGE_S


def summarise(metrics: Sequence[Metrics], best_metric: str) -> Sparkline:
    """Return the losses of some steps, and the newest value of the figure of evaluations."""
    name = f"eval_{best_metric.removeprefix('eval_')}"
    values = [entry.raw.get(name) for entry in metrics]
    numbers = [value for value in values if is_finite_number(value)]
    losses = tuple(entry.loss for entry in metrics if is_finite_number(entry.loss))
    return Sparkline(losses, name.removeprefix("eval_"), numbers[-1] if numbers else None)


def _read_step(job: Job) -> int:
    return (job.progress.step or 0) if job.progress else 0


def draw(losses: Sequence[float], width: int = 84, height: int = 24) -> str:
    """Draw losses as an SVG line; empty for fewer than two."""
    if len(losses) < 2:
        return ""
    lowest, highest = min(losses), max(losses)
    span = (highest - lowest) or 1.0
    points = " ".join(
        f"{1 + (width - 2) * number / (len(losses) - 1):.0f},"
        f"{2 + (height - 4) * (highest - loss) / span:.0f}"
        for number, loss in enumerate(losses)
    )
    return (
        f'<svg class="ts-spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'aria-hidden="true"><polyline points="{points}"/></svg>'
    )
