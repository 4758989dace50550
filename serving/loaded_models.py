"""The engines of one replica: loaded on demand, lent to requests, put out when not needed."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from serving.engine import Engine, EngineSettings
from serving.errors import DeadlineExceededError, EngineDeadError, OverloadedError
from serving.model_store import StoredModel
from serving.sampling import Sampling
from storage import durable

logger = logging.getLogger(__name__)

_LOAD_RETRY_AFTER_S = 5


@dataclass
class LoadedModel:
    """A model and the engine that answers for it; `last_used` is a monotonic time in seconds."""

    stored: StoredModel
    engine: Engine
    last_used: float = field(default_factory=time.monotonic)


class LoadedModels:
    """Keeps at most `max_loaded` engines, putting out the least recently used idle one.

    Belongs to one event loop; loading and closing happen on threads beside it.
    """

    def __init__(self, settings: EngineSettings, max_loaded: int) -> None:
        self._settings = settings
        self._max_loaded = max_loaded
        self._loaded: dict[str, LoadedModel] = {}
        self._loading: dict[str, asyncio.Task[LoadedModel]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._num_leases: Counter[str] = Counter()
        self._kept: frozenset[str] = frozenset()
        self._is_closed = False

    def list_loaded(self) -> list[LoadedModel]:
        """List what is loaded, by id."""
        return [self._loaded[model_id] for model_id in sorted(self._loaded)]

    def keep(self, model_ids: Collection[str]) -> None:
        """Name the models that aliases answer with, which are put out last, and no others."""
        self._kept = frozenset(model_ids)
        self._put_out_excess()

    def drop_deleted(self) -> None:
        """Put out what has been deleted from the store."""
        for loaded in self.list_loaded():
            if not self._num_leases[loaded.stored.id] and not loaded.stored.is_there():
                self._close_aside(self._take_out(loaded))

    @asynccontextmanager
    async def lend(self, model: StoredModel, *, timeout_s: float) -> AsyncIterator[LoadedModel]:
        """Lend the engine of `model`, loading it first where needed; while lent it stays.

        Nobody can delete it meanwhile. Raises `ModelNotFoundError` if somebody has,
        `OverloadedError` when every engine is busy and there may be no more of them,
        `EngineDeadError` when the model does not load, `DeadlineExceededError` after `timeout_s`.
        """
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
            self._put_out_excess()

    async def load(self, model: StoredModel, *, beside: bool = False) -> LoadedModel:
        """Return the model's engine, loading and warming it up unless that is done or under way.

        `beside` loads it in addition to what is loaded, whatever the limit; what is too much is
        put out when it is idle.
        """
        if (loaded := self._find(model)) is not None:
            return loaded
        if model.id not in self._loading:
            put_out = None if beside else self._make_room(model.id)
            task = asyncio.create_task(self._load(model, put_out))
            self._loading[model.id] = task
        # Shielded: others may wait for the same engine.
        return await asyncio.shield(self._loading[model.id])

    def close(self) -> None:
        """Stop every engine, and each that is still being loaded as soon as it is."""
        self._is_closed = True
        while self._loaded:
            self._loaded.popitem()[1].engine.close()

    async def _load(self, model: StoredModel, put_out: LoadedModel | None) -> LoadedModel:
        started = time.monotonic()
        try:
            if put_out is not None:
                await asyncio.to_thread(put_out.engine.close)
            engine = await asyncio.to_thread(self._load_engine, model)
            try:
                # The first pass through a model is its slowest; no request should wait for it.
                async for _ in engine.generate([0], Sampling(max_new_tokens=1)):
                    pass
            except BaseException:
                engine.close()
                raise
            self._loaded[model.id] = LoadedModel(model, engine)
        finally:
            del self._loading[model.id]
        logger.info("loaded model %s in %.1f s", model.id, time.monotonic() - started)
        return self._loaded[model.id]

    def _find(self, model: StoredModel) -> LoadedModel | None:
        """Find the engine of exactly this model; one of the same id was deleted and is put out."""
        loaded = self._loaded.get(model.id)
        if loaded is None or loaded.stored.edition == model.edition:
            return loaded
        self._close_aside(self._take_out(loaded))
        return None

    def _load_engine(self, model: StoredModel) -> Engine:
        with model.hold():
            try:
                model.verify()
            except durable.DamagedDirectoryError as exc:
                raise EngineDeadError(f"model {model.id!r} is not loaded: {exc}") from exc
            engine = Engine.load(model.path, self._settings)
        if self._is_closed:
            engine.close()
            raise EngineDeadError("the replica is shutting down")
        return engine

    def _make_room(self, model_id: str) -> LoadedModel | None:
        if len(self._loaded) + len(self._loading) < self._max_loaded:
            return None
        # Only what is needed by nobody now, and what an alias answers with last of all.
        victim = self._find_idle(among=self._loaded.keys() - self._kept) or self._find_idle(
            among=self._loaded.keys()
        )
        if victim is None:
            raise OverloadedError(
                f"model {model_id!r} is not loaded, and all {self._max_loaded} models that may "
                "be are busy",
                retry_after_s=_LOAD_RETRY_AFTER_S,
            )
        return self._take_out(victim)

    def _put_out_excess(self) -> None:
        while len(self._loaded) > self._max_loaded:
            victim = self._find_idle(among=self._loaded.keys() - self._kept)
            if victim is None:
                return
            self._close_aside(self._take_out(victim))

    def _close_aside(self, loaded: LoadedModel) -> None:
        task = asyncio.create_task(asyncio.to_thread(loaded.engine.close))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _find_idle(self, *, among: Collection[str]) -> LoadedModel | None:
        idle = [self._loaded[model_id] for model_id in among if not self._num_leases[model_id]]
        return min(idle, key=lambda loaded: loaded.last_used, default=None)

    def _take_out(self, victim: LoadedModel) -> LoadedModel:
        logger.info("putting out model %s", victim.stored.id)
        return self._loaded.pop(victim.stored.id)
