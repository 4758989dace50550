"""The engines of one replica: loaded on demand, leased to requests, evicted when idle."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from serving.engine.engine import Engine
from serving.engine.remote import fork_server
from serving.engine.sampling import Sampling
from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    EngineLostError,
    NoRoomError,
    OverloadedError,
)
from serving.pool.eviction import LOAD_RETRY_AFTER_S, Eviction
from serving.pool.loaded_models import LoadedModel, LoadedModels, Loading, list_used
from serving.pool.memory_budget import MemoryEstimates
from serving.settings import EngineSettings
from serving.store.stored_model import StoredModel
from system.priority import lower_thread_priority
from system.threads import run_in_new_thread
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
        self._loaded = LoadedModels()
        self._loading: dict[str, Loading] = {}
        self._eviction = Eviction(self._loaded, self._loading, max_loaded, max_bytes)
        self._estimates = MemoryEstimates(settings, max_bytes, find_base)
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
        excess models are evicted when idle. Raises `NoRoomError` if memory does not fit it in
        addition to the models in use, `InvalidRequestError` if it can never fit.
        """
        if (loaded := self._loaded.find(model)) is not None:
            return loaded
        if model.id not in self._loading:
            needed = await self._estimates.list_needed(model)
            if (loaded := self._loaded.find(model)) is not None:
                return loaded
            self._start_loading(needed, beside=beside)
        # Shielded: other requests may wait for the same engine.
        return await asyncio.shield(self._loading[model.id].task)

    def can_replace(self, old: StoredModel, new: StoredModel, kept: Collection[str] = ()) -> bool:
        """Return whether `new` fits once `old` and idle models that no alias uses are evicted.

        The base model of `old` is evicted with it, unless `new` uses it or it is one of the ids
        `kept`. Call it only for a model that `load` raised `NoRoomError` for: its size is known
        then.
        """
        used = list_used(new)
        sizes = [self._estimates.get_by_id(one) for one in used if not self._loaded.has(one)]
        return self._eviction.fits_instead(_list_freed(old, new, kept), used, sum(sizes))

    async def replace(
        self,
        old: StoredModel,
        new: StoredModel,
        is_still_wanted: Callable[[], bool],
        kept: Collection[str] = (),
    ) -> bool:
        """Replace `old` by `new` once the last running request of what is evicted has ended.

        That is described at `can_replace`. New requests for it wait meanwhile. If `new` does not
        load, `old` is loaded again. Returns whether the models were replaced; they are not if
        `is_still_wanted()` is false when `old` is idle. Raises `NoRoomError` if the freed memory no
        longer suffices by then.
        """
        freed = _list_freed(old, new, kept)
        drained = asyncio.Event()
        self._draining.update(dict.fromkeys(freed, _Draining(drained)))
        try:
            needed = await self._estimates.list_needed(new)
            for model_id in freed:  # requests of an adapter use its base, which is the last
                await self._loaded.wait_until_idle(model_id)
            if not is_still_wanted():
                return False
            if not self.can_replace(old, new, kept):  # other models were loaded meanwhile
                raise NoRoomError(f"the room that {old.id!r} leaves is not enough any more")
            for model_id in freed:
                self._loaded.evict(model_id)
            try:
                # Reserves the memory before any other task can take it.
                self._start_loading(needed, beside=True)
                await self.load(new, beside=True)
            except Exception:
                await self.load(old, beside=True)
                raise
            return True
        finally:
            for model_id in freed:
                del self._draining[model_id]
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

    def _start_loading(self, needed: Sequence[tuple[StoredModel, int]], *, beside: bool) -> None:
        """Reserve the memory of what is not loaded yet, and begin to load it.

        Raises `NoRoomError`.
        """
        missing = [
            (model, size_bytes)
            for model, size_bytes in needed
            if self._loaded.find(model) is None and model.id not in self._loading
        ]
        if not missing:
            return
        size_bytes = sum(size for _, size in missing)
        self._eviction.make_room([model for model, _ in missing], size_bytes, beside=beside)
        base = needed[0][0]
        for model, size_bytes in missing:
            self._loaded.add_lease(base)  # it must not be evicted before the adapter is loaded
            task = asyncio.create_task(self._load(model, base, size_bytes, beside=beside))
            self._loading[model.id] = Loading(model, task, size_bytes)

    async def _load(
        self, model: StoredModel, base: StoredModel, size_bytes: int, *, beside: bool
    ) -> LoadedModel:
        """Load a model, or an adapter on its `base`, and end the lease of the base."""
        started = time.monotonic()
        try:
            with model.lock_shared():
                engine = await self._start(model, base, beside=beside)
            try:
                await _warm_up(model, engine)
                self._check_open()
            except BaseException:
                await asyncio.to_thread(engine.close)
                raise
            loaded = LoadedModel(model, engine, size_bytes)
            self._loaded.add(loaded)
        finally:
            del self._loading[model.id]
            self._loaded.end_lease(base)
        logger.info("loaded model %s in %.1f s", model.id, time.monotonic() - started)
        return loaded

    async def _start(self, model: StoredModel, base: StoredModel, *, beside: bool) -> Engine:
        if model.is_adapter:
            engine = (await self.load(base, beside=beside)).engine
        else:
            await self._loaded.wait_until_closed()
        await run_in_new_thread(_verify, model)
        self._check_open()
        if model.is_adapter:
            return await _open_adapter(engine, model, base)
        return await asyncio.to_thread(Engine.start, model.path, self._settings)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineDeadError("the replica is shutting down")


async def _open_adapter(engine: Engine, adapter: StoredModel, base: StoredModel) -> Engine:
    """Open an adapter on the engine of its base; `EngineLostError` if that one has died."""
    try:
        return await engine.open_adapter(adapter.path, base.path)
    except EngineDeadError as exc:
        if engine.is_healthy():
            raise
        raise EngineLostError(f"the engine of its base model {base.id!r} has died") from exc


async def _warm_up(model: StoredModel, engine: Engine) -> None:
    """Compute one token: the first pass through a model is its slowest; no request should wait.

    The requests that run on the base of an adapter do not prevent it. Raises `EngineLostError` if
    the process of the base has ended.
    """
    answer = engine.generate([0], Sampling(max_new_tokens=1), checks_capacity=False)
    try:
        async for _ in answer:
            pass
    except EngineDeadError as exc:
        if engine.is_healthy() or not model.is_adapter:
            raise
        raise EngineLostError("the engine of its base model has died") from exc


def _list_freed(old: StoredModel, new: StoredModel, kept: Collection[str]) -> list[str]:
    """List the ids of what is evicted if `new` replaces `old`, an adapter before its base."""
    return [one for one in list_used(old) if one not in {*list_used(new), *kept}]


def _verify(model: StoredModel) -> None:
    lower_thread_priority()  # verification should not slow down serving
    model.verify_before_loading()
