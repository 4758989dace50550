"""The adapters of one loaded model, by number, and the adapter of each row of a forward pass."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from serving.adapters.adapted_linear import ADAPTABLE, AdaptedLinear
from serving.adapters.adapter_file import LayerFactors, read_adapter
from serving.adapters.adapter_stacks import AdapterStacks
from serving.adapters.arena import Arena, Layout
from serving.engine.messages import find_adapter
from serving.errors import EngineDeadError


class AdapterBank:
    """Adds adapters to a model, each under a number; requests name theirs in their ids.

    A layer of the model is replaced when the first adapter changes it: models without adapters
    compute as before. `load` and `unload` may be called from any thread, the other methods from
    the thread that computes. A pass has at most `max_rows` rows.
    """

    def __init__(self, model: Any, page_size: int, max_rows: int) -> None:
        self._model = model
        self._page_size = page_size
        self._device: torch.device = model.device
        self._stacks = AdapterStacks(self._device, max_rows)
        self._layers: list[AdaptedLinear] = []
        self._loaded: set[int] = set()
        self._unwanted: set[int] = set()  # unloaded before they were loaded
        self._lock = Lock()

    def load(self, number: int, directory: Path) -> None:
        """Load an adapter; raises `EngineDeadError` if it does not fit the model."""
        factors = read_adapter(directory)
        with self._lock:
            if number in self._unwanted:
                self._unwanted.remove(number)
                return
            try:
                self._add(number, factors)
                if self._device.type == "cuda":  # passes run in another stream
                    torch.cuda.current_stream(self._device).synchronize()
                self._loaded.add(number)
            except BaseException as exc:
                self._remove(number)
                if not isinstance(exc, EngineDeadError):
                    raise
                raise EngineDeadError(
                    f"adapter {directory.name!r} cannot be loaded: {exc.message}; merge it into "
                    "its base model, or train it again"
                ) from exc

    def unload(self, number: int) -> None:
        """Free the memory of an adapter that no request uses, once it is loaded."""
        with self._lock:
            if number in self._loaded:
                self._loaded.remove(number)
                self._remove(number)
            else:
                self._unwanted.add(number)

    def set_batch(self, requests: Sequence[tuple[str, int]]) -> int | None:
        """Set the requests of the next pass, in order: pairs of an id and a number of rows.

        Returns what tells apart passes that read different tensors; None if none has an adapter.
        """
        spans = [(find_adapter(request_id), rows) for request_id, rows in requests]
        return self._stacks.set_batch(spans, self._layers, self._loaded)

    @contextmanager
    def use(self, number: int) -> Iterator[None]:
        """Compute the passes in the body with one adapter for all rows; 0 is the model itself."""
        self._stacks.set_batch([(number, 1)], self._layers, self._loaded, is_endless=True)
        try:
            yield
        finally:
            self._stacks.set_batch([], (), ())

    def salt(self, request_id: str, token_ids: list[int]) -> list[int]:
        """Return the token ids by which the cache finds pages that a request may share.

        The keys and values of the same tokens differ between adapters, so the ids must differ too.
        """
        if not (number := find_adapter(request_id)):
            return token_ids
        bits = cycle(_list_bits(number, self._page_size))
        return [token_id ^ more for token_id, more in zip(token_ids, bits, strict=False)]

    def _add(self, number: int, factors: Mapping[str, LayerFactors]) -> None:
        # All layers are looked up first, so that an adapter that does not fit replaces none.
        layers = {name: self._find_layer(name) for name in factors}
        layouts: list[Layout] = []
        for name, layer in layers.items():
            parts = (factors[name].a, factors[name].b)
            layouts += [(part.shape, layer.weight.dtype) for part in parts]
        arena = Arena(layouts, self._device)
        for name, layer in layers.items():
            if not isinstance(layer, AdaptedLinear):
                layer = AdaptedLinear(layer, self._stacks.rows)
                self._model.set_submodule(name, layer)
                self._layers.append(layer)
            try:
                layer.add(number, factors[name], arena)
            except EngineDeadError as exc:
                raise EngineDeadError(f"{name!r}: {exc.message}") from exc

    def _find_layer(self, name: str) -> Any:
        if any(part.startswith("expert") for part in name.split(".")):
            raise EngineDeadError(
                f"it changes the expert {name!r}, whose rows are not those of the batch"
            )
        try:
            layer = self._model.get_submodule(name)
        except AttributeError:
            raise EngineDeadError(f"the model has no layer {name!r}, which it changes") from None
        if not isinstance(layer, (AdaptedLinear, *ADAPTABLE)):
            raise EngineDeadError(
                f"it changes {name!r}, a {type(layer).__name__}; expected a linear layer"
            )
        return layer

    def _remove(self, number: int) -> None:
        for layer in self._layers:
            layer.remove(number)


@lru_cache(maxsize=1024)
def _list_bits(number: int, page_size: int) -> tuple[int, ...]:
    """Return 31 bits for each position of a page, different for each adapter.

    Ids of tokens have fewer than 20 bits: the pages of two adapters have equal ids only if the
    other bits are equal at every position of a page.
    """
    source = random.Random(number)  # noqa: S311 - no secret
    return tuple(source.getrandbits(31) for _ in range(page_size))
