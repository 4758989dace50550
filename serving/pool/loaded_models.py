"""The engines that are in memory, with their leases and the order of their eviction."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from serving.engine.engine import Engine
from serving.store.stored_model import StoredModel

logger = logging.getLogger(__name__)


@dataclass
class LoadedModel:
    """A model and its engine; `last_used` is a monotonic time in seconds."""

    stored: StoredModel
    engine: Engine
    size_bytes: int
    last_used: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Loading:
    """A model that is being loaded, and the memory that is reserved for it."""

    model: StoredModel
    task: asyncio.Task[LoadedModel]
    size_bytes: int


class LoadedModels:
    """Loaded models by id; a leased model is never idle, and a pinned one is evicted last.

    The base model of an adapter is leased with it, and evicted with all its adapters.

    Use from one event loop only; engines are closed in other threads.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, LoadedModel] = {}
        self._num_leases: Counter[str] = Counter()
        self._pinned: frozenset[str] = frozenset()
        self._closing: set[asyncio.Future[None]] = set()
        self._lease_ended = asyncio.Event()

    def list_all(self) -> list[LoadedModel]:
        """List the loaded models, sorted by id."""
        return [self._loaded[model_id] for model_id in sorted(self._loaded)]

    def add(self, loaded: LoadedModel) -> None:
        """Add a model that has been loaded."""
        self._loaded[loaded.stored.id] = loaded

    def has(self, model_id: str | None) -> bool:
        """Return whether a model with this id is loaded."""
        return model_id in self._loaded

    def find(self, model: StoredModel) -> LoadedModel | None:
        """Return the engine of exactly this model, or None.

        A dead engine is evicted, and so is the engine of a deleted model that had the same id.
        """
        loaded = self._loaded.get(model.id)
        if loaded is None:
            return None
        if loaded.stored.edition == model.edition and loaded.engine.is_healthy():
            return loaded
        self.evict(model.id)
        return None

    def pin(self, model_ids: Collection[str]) -> None:
        """Set the models that are evicted last."""
        self._pinned = frozenset(model_ids)

    def is_pinned(self, model_id: str) -> bool:
        """Return whether the model is evicted last."""
        return model_id in self._pinned

    def count_leases(self, model_id: str) -> int:
        """Return how many requests use a model, whether or not it is loaded yet."""
        return self._num_leases[model_id]

    def add_lease(self, model: StoredModel) -> None:
        """Count one more request that uses a model, and its base if it is an adapter."""
        self._num_leases.update(list_used(model))

    def end_lease(self, model: StoredModel) -> None:
        """Count one request less that uses a model, which was used until now."""
        self._num_leases.subtract(list_used(model))
        for model_id in list_used(model):
            if (loaded := self._loaded.get(model_id)) is not None:
                loaded.last_used = time.monotonic()
        self._lease_ended.set()

    async def wait_until_idle(self, model_id: str) -> None:
        """Wait until no request uses a model."""
        while self._num_leases[model_id]:
            self._lease_ended.clear()
            await self._lease_ended.wait()

    def list_idle(self) -> list[LoadedModel]:
        """List idle models in the order of eviction: pinned last, least recently used first."""
        idle = [one for name, one in self._loaded.items() if not self._num_leases[name]]
        return sorted(idle, key=lambda one: (self.is_pinned(one.stored.id), one.last_used))

    def evict(self, model_id: str) -> None:
        """Remove a model, if it is loaded, and close its engine in a thread."""
        if (loaded := self._loaded.pop(model_id, None)) is None:
            return
        for other in self.list_all():
            if model_id in list_used(other.stored):
                self.evict(other.stored.id)
        logger.info("evicting model %s", model_id)
        # Not a task: one that has not begun would be cancelled with the loop, and close nothing.
        closing = asyncio.get_running_loop().run_in_executor(None, loaded.engine.close)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def wait_until_closed(self) -> None:
        """Wait until the engines of evicted models are closed, so that their memory is free."""
        while self._closing:
            await asyncio.wait(self._closing)

    def close(self) -> None:
        """Close every engine; block until done."""
        while self._loaded:
            self._loaded.popitem()[1].engine.close()


def list_used(model: StoredModel) -> list[str]:
    """Return the ids of the models that a request for a model uses: its own, and its base's."""
    base = model.lineage.base_model if model.is_adapter else None
    return [model.id] if base is None else [model.id, base]
