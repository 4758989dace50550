"""Which models are evicted so that another one fits into the memory of a replica."""

from collections.abc import Collection, Mapping, Sequence

from serving.errors import NoRoomError
from serving.pool.loaded_models import LoadedModels, Loading, list_used
from serving.pool.memory_budget import format_gb
from serving.store.stored_model import StoredModel

LOAD_RETRY_AFTER_S = 5


class Eviction:
    """Evicts idle models, the least recently used first, to keep to two limits.

    At most `max_loaded` models, adapters not counted, may be loaded, in `max_bytes`. Models that
    are being loaded, `loading`, count as loaded.
    """

    def __init__(
        self,
        loaded: LoadedModels,
        loading: Mapping[str, Loading],
        max_loaded: int,
        max_bytes: int,
    ) -> None:
        self._loaded = loaded
        self._loading = loading
        self._max_loaded = max_loaded
        self._max_bytes = max_bytes

    def make_room(self, models: Sequence[StoredModel], size_bytes: int, *, beside: bool) -> None:
        """Evict the models that must be evicted to load others, which need `size_bytes` together.

        `beside` loads them in addition to the models that aliases use, regardless of `max_loaded`.
        What they use stays. Raises `NoRoomError`, and evicts none, if that is not enough.
        """
        used = {model_id for model in models for model_id in list_used(model)}
        candidates = [
            idle
            for idle in self._loaded.list_idle()
            if not (beside and self._loaded.is_pinned(idle.stored.id))
            and idle.stored.id not in used
        ]
        needs_place = not beside and not all(model.is_adapter for model in models)
        num_free = self._max_loaded - self._count_models()
        free_bytes = self._max_bytes - self._sum_bytes()
        num_evicted = 0
        while (num_free < 1 and needs_place) or free_bytes < size_bytes:
            if num_evicted == len(candidates):
                raise NoRoomError(
                    f"model {models[-1].id!r} is not loaded, and there is no room for it beside "
                    f"the models that are busy: {self._max_loaded} may be loaded, and take "
                    f"{format_gb(self._max_bytes)}",
                    retry_after_s=LOAD_RETRY_AFTER_S,
                )
            num_free += not candidates[num_evicted].stored.is_adapter
            free_bytes += candidates[num_evicted].size_bytes
            num_evicted += 1
        for candidate in candidates[:num_evicted]:
            self._loaded.evict(candidate.stored.id)

    def fits_instead(self, freed: Collection[str], used: Collection[str], size_bytes: int) -> bool:
        """Return whether `size_bytes` fit once models are evicted.

        These are those with the ids `freed`, and idle ones that no alias uses and are not `used`.
        """
        evictable = {
            idle.stored.id
            for idle in self._loaded.list_idle()
            if not self._loaded.is_pinned(idle.stored.id) and idle.stored.id not in used
        }
        return self._sum_bytes(without={*evictable, *freed}) + size_bytes <= self._max_bytes

    def evict_excess(self) -> None:
        """Evict idle models that no alias uses while more than `max_loaded` are loaded."""
        num_excess = max(0, self._count_models() - self._max_loaded)
        idle = [one.stored for one in self._loaded.list_idle() if not one.stored.is_adapter]
        for model in idle[:num_excess]:
            if not self._loaded.is_pinned(model.id):
                self._loaded.evict(model.id)

    def _count_models(self) -> int:
        """Return how many models are loaded or being loaded, without adapters."""
        models = [one.stored for one in self._loaded.list_all()]
        models += [one.model for one in self._loading.values()]
        return sum(not model.is_adapter for model in models)

    def _sum_bytes(self, without: frozenset[str] | set[str] = frozenset()) -> int:
        """Return the bytes of the models that are loaded or being loaded, but for some."""
        loaded = [one.size_bytes for one in self._loaded.list_all() if one.stored.id not in without]
        return sum(loaded) + sum(one.size_bytes for one in self._loading.values())
