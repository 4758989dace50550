"""The engines of one replica: loaded on demand, leased to requests, evicted when idle."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from serving.engine.engine import Engine
from serving.engine.remote import fork_server
from serving.engine.sampling import Sampling
from serving.errors import DeadlineExceededError, EngineDeadError, OverloadedError
from serving.pool.eviction import LOAD_RETRY_AFTER_S, Eviction
from serving.pool.loaded_models import LoadedModel, LoadedModels, Loading, list_used
from serving.pool.memory_budget import MemoryEstimates
from serving.settings import EngineSettings
from serving.store.stored_model import StoredModel
from system.threads import lower_thread_priority, run_in_new_thread
from templating.render_fork_server import render_fork_server

logger = logging.getLogger(__name__)


@dataclass
class _Draining:
    """A model that finishes its running requests before eviction; new requests wait for `over`."""

    over: asyncio.Event
    num_waiting: int = 0


class ModelPool:
    """Keeps at most `max_loaded` engines in `max_bytes` and evicts idle engines, LRU first.

    An adapter is loaded on the engine of its base model, which `find_base` returns, and does not
    count towards `max_loaded`. A base model is in use while one of its adapters is. Use from one
    event loop only; loading and closing run in other threads.
    """

    def __init__(
        self,
        settings: EngineSettings,
        max_loaded: int,
        max_bytes: int,
        find_base: Callable[[StoredModel], StoredModel],
    ) -> None:
        self._settings = settings
        self._find_base = find_base
        self._loaded = LoadedModels()
        self._loading: dict[str, Loading] = {}
        self._eviction = Eviction(self._loaded, self._loading, max_loaded, max_bytes)
        self._estimates = MemoryEstimates(settings, max_bytes)
        self._draining: dict[str, _Draining] = {}
        self._is_closed = False
        fork_server.start()  # takes some seconds to be ready
        render_fork_server.start()

    def list_loaded(self) -> list[LoadedModel]:
        """List the loaded models, sorted by id."""
        return self._loaded.list_all()

    def count_active(self, loaded: LoadedModel) -> int:
        """Return how many answers of a model are running or queued; for an adapter, requests.

        The answers of its adapters count as those of a model.
        """
        if loaded.stored.is_adapter:
            return self._loaded.count_leases(loaded.stored.id)
        return loaded.engine.num_active

    def pin(self, models: Iterable[StoredModel]) -> None:
        """Set the models that aliases use; they and the bases of adapters are evicted last."""
        self._loaded.pin({model_id for model in models for model_id in list_used(model)})
        self._eviction.evict_excess()

    def evict_dead(self) -> None:
        """Evict idle models that were deleted from the store or whose engine has died."""
        for idle in self._loaded.list_idle():
            if not (idle.stored.exists() and idle.engine.is_healthy()):
                self._loaded.evict(idle.stored.id)

    @asynccontextmanager
    async def lease(self, model: StoredModel, *, timeout_s: float) -> AsyncIterator[LoadedModel]:
        """Lease the engine of `model`, loading it first if needed.

        A leased model is neither evicted nor deleted. Raises `ModelNotFoundError` if the model was
        deleted, `OverloadedError` if every engine is busy and no more may be loaded or too many
        requests use this model, `EngineDeadError` if the model does not load,
        `DeadlineExceededError` if loading takes more than `timeout_s`.
        """
        for model_id in list_used(model):
            num_leases = self._loaded.count_leases(model_id)
            if num_leases >= self._settings.capacity:
                raise OverloadedError(
                    f"{num_leases} requests are with model {model_id!r} or wait for it",
                    retry_after_s=1,
                )
        self._loaded.add_lease(model)
        lock = None
        try:
            lock = model.lock_shared()
            loaded = self._loaded.find(model)
            if loaded is None:
                try:
                    loaded = await asyncio.wait_for(self.load(model), timeout_s)
                except TimeoutError as exc:
                    raise DeadlineExceededError(
                        f"model {model.id!r} was not loaded within {timeout_s:g} s"
                    ) from exc
            yield loaded
        finally:
            if lock is not None:
                lock.close()
            self._loaded.end_lease(model)
            self._eviction.evict_excess()

    async def load(self, model: StoredModel, *, beside: bool = False) -> LoadedModel:
        """Return the model's engine; load and warm it up unless that is done or in progress.

        `beside` loads it in addition to the models that aliases use, regardless of `max_loaded`;
        excess models are evicted when idle. Raises `OverloadedError` if memory does not fit it in
        addition to the models in use, `InvalidRequestError` if it can never fit.
        """
        if (loaded := self._loaded.find(model)) is not None:
            return loaded
        if model.id not in self._loading:
            size_bytes = await self._estimates.estimate(model)
            if model.id not in self._loading:  # no other task has started to load it meanwhile
                if (loaded := self._loaded.find(model)) is not None:
                    return loaded
                self._eviction.make_room(model, size_bytes, beside=beside)
                task = asyncio.create_task(self._load(model, size_bytes, beside=beside))
                self._loading[model.id] = Loading(model, task, size_bytes)
        # Shielded: other requests may wait for the same engine.
        return await asyncio.shield(self._loading[model.id].task)

    def can_replace(self, old: StoredModel, new: StoredModel) -> bool:
        """Return whether `new` fits once `old` and idle models that no alias uses are evicted.

        Call it only for a model that `load` raised `OverloadedError` for: its size is known then.
        """
        needed = self._estimates.get(new)
        if new.is_adapter and not self._loaded.has(base := new.lineage.base_model):
            needed += self._estimates.get_by_id(base)
        return self._eviction.fits_instead(old, needed)

    async def replace(
        self, old: StoredModel, new: StoredModel, is_still_wanted: Callable[[], bool]
    ) -> bool:
        """Replace `old` by `new` once the last running request of `old` has ended.

        New requests for `old` wait meanwhile. If `new` does not load, `old` is loaded again.
        Returns whether the models were replaced; they are not if `is_still_wanted()` is false when
        `old` is idle. Raises `OverloadedError` if the freed memory no longer suffices by then.
        """
        drained = asyncio.Event()
        self._draining[old.id] = _Draining(drained)
        try:
            await self._loaded.wait_until_idle(old.id)
            if not is_still_wanted():
                return False
            if not self.can_replace(old, new):  # other models were loaded meanwhile
                raise OverloadedError(f"the room that {old.id!r} leaves is not enough any more")
            # `load` reserves the memory before its first await, so no other model can take it.
            self._loaded.evict(old.id)
            try:
                await self.load(new, beside=True)
            except Exception:
                await self.load(old, beside=True)
                raise
            return True
        finally:
            del self._draining[old.id]
            drained.set()

    async def wait_while_draining(self, model: StoredModel, *, timeout_s: float) -> bool:
        """Wait while the model is draining; return whether it was.

        Raises `DeadlineExceededError`, and `OverloadedError` if too many requests wait already.
        """
        found = (self._draining.get(model_id) for model_id in list_used(model))
        if (draining := next(filter(None, found), None)) is None:
            return False
        if draining.num_waiting >= self._settings.capacity:
            raise OverloadedError(
                f"{draining.num_waiting} requests wait for the model that replaces {model.id!r}",
                retry_after_s=LOAD_RETRY_AFTER_S,
            )
        draining.num_waiting += 1
        try:
            await asyncio.wait_for(draining.over.wait(), timeout_s)
        except TimeoutError as exc:
            raise DeadlineExceededError(
                f"model {model.id!r} was not replaced within {timeout_s:g} s"
            ) from exc
        finally:
            draining.num_waiting -= 1
        return True

    def close(self) -> None:
        """Stop every engine; engines that are still loading are stopped once they are loaded."""
        self._is_closed = True
        self._loaded.close()

    async def _load(self, model: StoredModel, size_bytes: int, *, beside: bool) -> LoadedModel:
        started = time.monotonic()
        try:
            with model.lock_shared():
                if model.is_adapter:
                    engine = await self._open_adapter(model, beside=beside)
                else:
                    engine = await self._start_engine(model)
            try:
                # The first pass through a model is its slowest; no request should wait for it.
                async for _ in engine.generate([0], Sampling(max_new_tokens=1)):
                    pass
                self._check_open()
            except BaseException:
                await asyncio.to_thread(engine.close)
                raise
            loaded = LoadedModel(model, engine, size_bytes)
            self._loaded.add(loaded)
        finally:
            del self._loading[model.id]
        logger.info("loaded model %s in %.1f s", model.id, time.monotonic() - started)
        return loaded

    async def _start_engine(self, model: StoredModel) -> Engine:
        await self._loaded.wait_until_closed()
        await run_in_new_thread(_verify, model)
        self._check_open()
        return await asyncio.to_thread(Engine.start, model.path, self._settings)

    async def _open_adapter(self, adapter: StoredModel, *, beside: bool) -> Engine:
        base = await asyncio.to_thread(self._find_base, adapter)
        self._loaded.add_lease(base)  # it must not be evicted before the adapter is loaded
        try:
            loaded = await self.load(base, beside=beside)
            await run_in_new_thread(_verify, adapter)
            self._check_open()
            return await loaded.engine.open_adapter(adapter.path, base.path)
        finally:
            self._loaded.end_lease(base)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineDeadError("the replica is shutting down")


def _verify(model: StoredModel) -> None:
    lower_thread_priority()  # verification should not slow down serving
    model.verify_before_loading()
