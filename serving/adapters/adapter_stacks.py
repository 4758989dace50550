"""The stacked factors of the adapters in a batch, in all layers that adapters change."""

from collections.abc import Collection, Sequence
from itertools import chain

import torch

from serving.adapters.adapted_linear import AdaptedLinear
from serving.adapters.arena import Arena
from serving.adapters.row_adapters import RowAdapters, Span, StaticRowAdapters


class AdapterStacks:
    """Stacks factors before a pass whose adapters differ from those of the pass before.

    Only the thread that computes calls it. A pass has at most `max_rows` rows. Everything that a
    pass reads is allocated here, before it: what a pass allocates while a CUDA graph is captured
    has addresses that other graphs write to. `version` increases when addresses change.
    """

    def __init__(self, device: torch.device, max_rows: int) -> None:
        self.rows = RowAdapters() if device.type == "cpu" else StaticRowAdapters(device, max_rows)
        self.version = 0
        self._device = device
        self._stacked: tuple[int, ...] = ()

    def set_batch(
        self,
        spans: Sequence[Span],
        layers: Sequence[AdaptedLinear],
        loaded: Collection[int],
        *,
        is_endless: bool = False,
    ) -> int | None:
        """Prepare the next pass over `layers`, whose rows have some of the `loaded` adapters.

        Returns the version; None if no row has an adapter. See `RowAdapters.set_rows`.
        """
        numbers = self.rows.choose_numbers(spans, loaded)
        if numbers and numbers != self._stacked:
            self._stack(numbers, layers)
        self.rows.set_rows(spans, is_endless=is_endless)
        return self.version if numbers else None

    def _stack(self, numbers: tuple[int, ...], layers: Sequence[AdaptedLinear]) -> None:
        # Freed together, their memory is adjacent and can be reused.
        for layer in layers:
            layer.stack = None
        # Another thread may remove an adapter meanwhile.
        found = [layer.find_factors(numbers) for layer in layers]
        layouts = [factors.list_layouts() for factors in found]
        arena = Arena(chain.from_iterable(layouts), self._device)
        for layer, factors, own in zip(layers, found, layouts, strict=True):
            layer.stack = factors.stack(own, arena)
        self.rows.prepare_masks({layer.stack.ranks for layer in layers if layer.stack is not None})
        self._stacked = numbers
        self.version += 1
