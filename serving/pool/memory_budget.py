"""The memory that stored models need, each inspected once."""

import asyncio
from collections.abc import Callable

from serving.engine.remote import inspect_in_fork
from serving.errors import EngineDeadError, EngineLostError, InvalidRequestError
from serving.loading.memory import estimate_adapter_memory, estimate_memory
from serving.settings import EngineSettings
from serving.store.stored_model import StoredModel


class MemoryEstimates:
    """Estimates of the memory of models, compared with a budget of `max_bytes`."""

    def __init__(
        self,
        settings: EngineSettings,
        max_bytes: int,
        find_base: Callable[[StoredModel], StoredModel],
    ) -> None:
        self._settings = settings
        self._max_bytes = max_bytes
        self._find_base = find_base
        # Bytes by id and edition, or the error why the model cannot be loaded.
        self._found: dict[tuple[str, tuple[int, int]], int | EngineDeadError] = {}

    async def list_needed(self, model: StoredModel) -> list[tuple[StoredModel, int]]:
        """Return what must be in memory for a model, with the bytes: an adapter's base first.

        Raises the errors of `estimate`, and `EngineDeadError` for an adapter without its base.
        """
        if not model.is_adapter:
            return [(model, await self.estimate(model))]
        base = await asyncio.to_thread(self._find_base, model)
        size_bytes = await self.estimate(model, base)
        return [(base, self.get(base)), (model, size_bytes)]

    async def estimate(self, model: StoredModel, base: StoredModel | None = None) -> int:
        """Return the bytes that a model needs; for an adapter, in addition to its `base`.

        Raises `EngineDeadError` for a model that cannot be loaded, `InvalidRequestError` for a
        model that is larger than the whole budget, with its base.
        """
        base_bytes = 0 if base is None else await self.estimate(base)
        key = (model.id, model.edition)
        if key not in self._found:  # cached because rejections under load need it every time
            try:
                self._found[key] = await asyncio.to_thread(self._measure, model, base)
            except EngineLostError:  # a retry may succeed
                raise
            except EngineDeadError as exc:
                self._found[key] = exc
        size_bytes = self._found[key]
        if isinstance(size_bytes, EngineDeadError):
            raise EngineDeadError(size_bytes.message)
        if base_bytes + size_bytes > self._max_bytes:
            beside = "" if base is None else f", with those of its base model {base.id!r}"
            raise InvalidRequestError(
                f"model {model.id!r} needs {format_gb(base_bytes + size_bytes)} for its weights "
                f"and its cache{beside}, and models may take {format_gb(self._max_bytes)} here",
                param="model",
                code="model_too_large",
            )
        return size_bytes

    def get(self, model: StoredModel) -> int:
        """Return the bytes of a model that `estimate` has returned before."""
        size_bytes = self._found[model.id, model.edition]
        assert isinstance(size_bytes, int), "only for a model that can be loaded"
        return size_bytes

    def get_by_id(self, model_id: str | None) -> int:
        """Return the bytes of the model with this id; 0 if `estimate` has not returned them."""
        sizes = [size for (name, _), size in self._found.items() if name == model_id]
        return max((size for size in sizes if isinstance(size, int)), default=0)

    def _measure(self, model: StoredModel, base: StoredModel | None) -> int:
        if base is None:
            return estimate_memory(inspect_in_fork(model.path), self._settings)
        try:
            return estimate_adapter_memory(model.path, base.path)
        except (OSError, ValueError) as exc:
            reason = str(exc).replace(str(model.path), model.id)
            raise EngineDeadError(f"adapter {model.id!r} cannot be loaded: {reason}") from exc


def format_gb(num_bytes: int) -> str:
    """Format a number of bytes in gigabytes."""
    return f"{num_bytes / 1e9:,.2f} GB"
