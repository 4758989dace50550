"""The engines of one replica: loaded on demand, leased to requests, evicted when idle."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from serving.engine.engine import Engine
from serving.engine.memory import estimate_memory
from serving.engine.remote import fork_server
from serving.engine.remote_inspection import inspect_in_fork
from serving.engine.sampling import Sampling
from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    EngineLostError,
    InvalidRequestError,
    OverloadedError,
)
from serving.settings import EngineSettings
from serving.store.model_store import StoredModel
from storage.durable import DamagedDirectoryError
from storage.versioned import NewerFormatError
from system.threads import lower_thread_priority, run_in_new_thread
from templating.fork_server import render_fork_server

logger = logging.getLogger(__name__)

_LOAD_RETRY_AFTER_S = 5


@dataclass
class LoadedModel:
    """A model and its engine; `last_used` is a monotonic time in seconds."""

    stored: StoredModel
    engine: Engine
    size_bytes: int
    last_used: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class _Loading:
    """A model that is being loaded."""

    task: asyncio.Task[LoadedModel]
    size_bytes: int


@dataclass
class _Draining:
    """A model that finishes its running requests before eviction; new requests wait for `over`."""

    over: asyncio.Event
    num_waiting: int = 0


class LoadedModels:
    """Keeps at most `max_loaded` engines in `max_bytes` and evicts idle engines, LRU first.

    Use from one event loop only; loading and closing run in other threads.
    """

    def __init__(self, settings: EngineSettings, max_loaded: int, max_bytes: int) -> None:
        self._settings = settings
        self._max_loaded = max_loaded
        self._max_bytes = max_bytes
        self._loaded: dict[str, LoadedModel] = {}
        self._loading: dict[str, _Loading] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # Bytes by id and edition, or the error why the model cannot be loaded.
        self._sizes: dict[tuple[str, tuple[int, int]], int | EngineDeadError] = {}
        self._num_leases: Counter[str] = Counter()
        self._returned = asyncio.Event()  # set whenever a lease ends
        self._draining: dict[str, _Draining] = {}
        self._kept: frozenset[str] = frozenset()
        self._is_closed = False
        fork_server.start()  # takes some seconds to be ready
        render_fork_server.start()

    def list_loaded(self) -> list[LoadedModel]:
        """List the loaded models, sorted by id."""
        return [self._loaded[model_id] for model_id in sorted(self._loaded)]

    def keep(self, model_ids: Collection[str]) -> None:
        """Set the models that aliases use; they are evicted last."""
        self._kept = frozenset(model_ids)
        self._put_out_excess()

    def drop_gone(self) -> None:
        """Evict idle models that were deleted from the store or whose engine has died."""
        for loaded in self.list_loaded():
            is_idle = not self._num_leases[loaded.stored.id]
            if is_idle and not (loaded.stored.is_there() and loaded.engine.is_healthy()):
                self._close_aside(self._take_out(loaded))

    @asynccontextmanager
    async def lend(self, model: StoredModel, *, timeout_s: float) -> AsyncIterator[LoadedModel]:
        """Lease the engine of `model`, loading it first if needed.

        A leased model is neither evicted nor deleted. Raises `ModelNotFoundError` if the model was
        deleted, `OverloadedError` if every engine is busy and no more may be loaded or too many
        requests use this model, `EngineDeadError` if the model does not load,
        `DeadlineExceededError` if loading takes more than `timeout_s`.
        """
        if self._num_leases[model.id] >= self._settings.capacity:
            raise OverloadedError(
                f"{self._num_leases[model.id]} requests are with model {model.id!r} or wait for it",
                retry_after_s=1,
            )
        self._num_leases[model.id] += 1
        held = None
        try:
            held = model.hold()
            loaded = self._find(model)
            if loaded is None:
                try:
                    loaded = await asyncio.wait_for(self.load(model), timeout_s)
                except TimeoutError as exc:
                    raise DeadlineExceededError(
                        f"model {model.id!r} was not loaded within {timeout_s:g} s"
                    ) from exc
            yield loaded
            loaded.last_used = time.monotonic()
        finally:
            if held is not None:
                held.close()
            self._num_leases[model.id] -= 1
            self._returned.set()
            self._put_out_excess()

    async def load(self, model: StoredModel, *, beside: bool = False) -> LoadedModel:
        """Return the model's engine; load and warm it up unless that is done or in progress.

        `beside` loads it in addition to the models that aliases use, regardless of `max_loaded`;
        excess models are evicted when idle. Raises `OverloadedError` if memory does not fit it in
        addition to the models in use, `InvalidRequestError` if it can never fit.
        """
        if (loaded := self._find(model)) is not None:
            return loaded
        if model.id not in self._loading:
            size_bytes = await self._estimate(model)
            if model.id not in self._loading:  # no other task has started to load it meanwhile
                if (loaded := self._find(model)) is not None:
                    return loaded
                put_out = self._make_room(model.id, size_bytes, beside=beside)
                self._start_loading(model, size_bytes, put_out)
        # Shielded: other requests may wait for the same engine.
        return await asyncio.shield(self._loading[model.id].task)

    def can_replace(self, old: StoredModel, new: StoredModel) -> bool:
        """Return whether `new` fits once `old` and idle models that no alias uses are evicted.

        Call it only for a model that `load` raised `OverloadedError` for: its size is known then.
        """
        size_bytes = self._sizes[new.id, new.edition]
        assert isinstance(size_bytes, int), "only for a model that `load` found no room for"
        idle = {*self._list_idle_ids(self._loaded.keys() - self._kept), old.id}
        stay = [one.size_bytes for name, one in self._loaded.items() if name not in idle]
        stay += [loading.size_bytes for loading in self._loading.values()]
        return sum(stay) + size_bytes <= self._max_bytes

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
            while self._num_leases[old.id]:
                self._returned.clear()
                await self._returned.wait()
            if not is_still_wanted():
                return False
            if not self.can_replace(old, new):  # other models were loaded meanwhile
                raise OverloadedError(f"the room that {old.id!r} leaves is not enough any more")
            # `load` reserves the memory before its first await, so no other model can take it.
            if old.id in self._loaded:
                self._close_aside(self._take_out(self._loaded[old.id]))
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
        if (draining := self._draining.get(model.id)) is None:
            return False
        if draining.num_waiting >= self._settings.capacity:
            raise OverloadedError(
                f"{draining.num_waiting} requests wait for the model that replaces {model.id!r}",
                retry_after_s=_LOAD_RETRY_AFTER_S,
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
        while self._loaded:
            self._loaded.popitem()[1].engine.close()

    def _start_loading(
        self, model: StoredModel, size_bytes: int, put_out: Sequence[LoadedModel]
    ) -> None:
        for loaded in put_out:
            self._close_aside(loaded)
        task = asyncio.create_task(self._load(model, size_bytes))
        self._loading[model.id] = _Loading(task, size_bytes)

    async def _load(self, model: StoredModel, size_bytes: int) -> LoadedModel:
        started = time.monotonic()
        try:
            while self._closing:  # their memory is not free until they are closed
                await asyncio.wait(self._closing)
            with model.hold():
                await run_in_new_thread(_verify, model)
                self._check_open()
                engine = await asyncio.to_thread(Engine.start, model.path, self._settings)
            try:
                # The first pass through a model is its slowest; no request should wait for it.
                async for _ in engine.generate([0], Sampling(max_new_tokens=1)):
                    pass
                self._check_open()
            except BaseException:
                await asyncio.to_thread(engine.close)
                raise
            self._loaded[model.id] = LoadedModel(model, engine, size_bytes)
        finally:
            del self._loading[model.id]
        logger.info("loaded model %s in %.1f s", model.id, time.monotonic() - started)
        return self._loaded[model.id]

    def _find(self, model: StoredModel) -> LoadedModel | None:
        """Return the engine of exactly this model, or None.

        A dead engine is evicted, and so is the engine of a deleted model that had the same id.
        """
        loaded = self._loaded.get(model.id)
        if loaded is None:
            return None
        if loaded.stored.edition == model.edition and loaded.engine.is_healthy():
            return loaded
        self._close_aside(self._take_out(loaded))
        return None

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineDeadError("the replica is shutting down")

    async def _estimate(self, model: StoredModel) -> int:
        """Return the bytes that a model needs; each model is inspected once.

        Raises `EngineDeadError` for a model that cannot be loaded, `InvalidRequestError` for a
        model that is larger than the whole budget.
        """
        key = (model.id, model.edition)
        if key not in self._sizes:  # cached because rejections under load need it every time
            try:
                self._sizes[key] = await asyncio.to_thread(_measure, model, self._settings)
            except EngineLostError:  # a retry may succeed
                raise
            except EngineDeadError as exc:
                self._sizes[key] = exc
        size_bytes = self._sizes[key]
        if isinstance(size_bytes, EngineDeadError):
            raise EngineDeadError(size_bytes.message)
        if size_bytes > self._max_bytes:
            raise InvalidRequestError(
                f"model {model.id!r} needs {_to_gb(size_bytes)} for its weights and its cache, and "
                f"models may take {_to_gb(self._max_bytes)} here",
                param="model",
                code="model_too_large",
            )
        return size_bytes

    def _make_room(self, model_id: str, size_bytes: int, *, beside: bool) -> list[LoadedModel]:
        """Remove the models that must be evicted to load another; the caller closes their engines.

        Raises `OverloadedError` if that is not enough.
        """
        # Only idle models; models that aliases use come last.
        victims = self._list_idle(self._loaded.keys() - self._kept)
        if not beside:
            victims += self._list_idle(self._loaded.keys() & self._kept)
        sizes = [loaded.size_bytes for loaded in self._loaded.values()]
        sizes += [loading.size_bytes for loading in self._loading.values()]
        num_free = self._max_loaded - len(sizes)
        free_bytes = self._max_bytes - sum(sizes)
        num_victims = 0
        while (num_free < 1 and not beside) or free_bytes < size_bytes:
            if num_victims == len(victims):
                raise OverloadedError(
                    f"model {model_id!r} is not loaded, and there is no room for it beside the "
                    f"models that are busy: {self._max_loaded} may be loaded, and take "
                    f"{_to_gb(self._max_bytes)}",
                    retry_after_s=_LOAD_RETRY_AFTER_S,
                )
            num_free += 1
            free_bytes += victims[num_victims].size_bytes
            num_victims += 1
        return [self._take_out(victim) for victim in victims[:num_victims]]

    def _put_out_excess(self) -> None:
        victims = self._list_idle(self._loaded.keys() - self._kept)
        for victim in victims[: max(0, len(self._loaded) - self._max_loaded)]:
            self._close_aside(self._take_out(victim))

    def _close_aside(self, loaded: LoadedModel) -> None:
        task = asyncio.create_task(asyncio.to_thread(loaded.engine.close))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _list_idle(self, model_ids: Collection[str]) -> list[LoadedModel]:
        """List idle models, least recently used first."""
        idle = [self._loaded[model_id] for model_id in self._list_idle_ids(model_ids)]
        return sorted(idle, key=lambda loaded: loaded.last_used)

    def _list_idle_ids(self, model_ids: Collection[str]) -> list[str]:
        return [model_id for model_id in model_ids if not self._num_leases[model_id]]

    def _take_out(self, victim: LoadedModel) -> LoadedModel:
        logger.info("putting out model %s", victim.stored.id)
        return self._loaded.pop(victim.stored.id)


def _measure(model: StoredModel, settings: EngineSettings) -> int:
    return estimate_memory(inspect_in_fork(model.path), settings)


def _verify(model: StoredModel) -> None:
    lower_thread_priority()  # verification should not slow down serving
    try:
        model.verify()
    except DamagedDirectoryError as exc:
        raise EngineDeadError(f"model {model.id!r} is not loaded: {exc}") from exc
    except NewerFormatError as exc:
        raise EngineDeadError(
            f"model {model.id!r} needs a newer version of Tuneserve: {exc.reason}"
        ) from exc


def _to_gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"
