"""Batches of the inputs of concurrent requests."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Computes inputs that wait together, once the last batch has ended.

    So an input that comes alone does not wait, and the longer a batch takes, the larger is the next
    one. Ray's `serve.batch` forms its batches earlier, in a fixed time after the first input: under
    load most had one or two inputs, and they waited for each other.

    `choose` gets the `max_waiting` inputs that have waited longest, and returns the indices of the
    next batch: the first, and others. `compute` returns a result for each input. Use from one event
    loop only.
    """

    def __init__(
        self,
        choose: Callable[[Sequence[T]], Sequence[int]],
        compute: Callable[[list[T]], Awaitable[Sequence[R]]],
        max_waiting: int,
    ) -> None:
        self._choose = choose
        self._compute = compute
        self._max_waiting = max_waiting
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._computing: asyncio.Task[None] | None = None

    async def run(self, inputs: Sequence[T]) -> list[R]:
        """Compute inputs, with those of other calls; raises what `compute` raises.

        A call that is cancelled takes the inputs back that are not computed yet.
        """
        loop = asyncio.get_running_loop()
        results: list[asyncio.Future[R]] = [loop.create_future() for _ in inputs]
        self._waiting.extend(zip(inputs, results, strict=True))
        if self._computing is None:
            self._computing = loop.create_task(self._compute_waiting())
        return await asyncio.gather(*results)

    async def _compute_waiting(self) -> None:
        try:
            while batch := self._take_batch():
                await self._compute_batch(batch)
        finally:
            self._computing = None

    def _take_batch(self) -> list[tuple[T, asyncio.Future[R]]]:
        # The result of a call that was cancelled is done.
        self._waiting = [(item, result) for item, result in self._waiting if not result.done()]
        if not self._waiting:
            return []
        chosen = self._choose([item for item, _ in self._waiting[: self._max_waiting]])
        batch = [self._waiting[index] for index in chosen]
        for index in sorted(chosen, reverse=True):
            del self._waiting[index]
        return batch

    async def _compute_batch(self, batch: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            found = await self._compute([item for item, _ in batch])
        except Exception as exc:  # noqa: BLE001 - of all calls in the batch
            for _, result in batch:
                if not result.done():
                    result.set_exception(exc)
            return
        for (_, result), value in zip(batch, found, strict=True):
            if not result.done():
                result.set_result(value)
