"""The adapter of each row of a forward pass, as all adapted layers of a model share it."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import torch

from serving.adapters.flat_memory import FlatMemory

_MAX_STATIC = 16

Span = tuple[int, int]
"""The number of an adapter, 0 for the model itself, and a count of rows that have it."""


class RowAdapters:
    """The adapter of each row of the current pass, by the numbers of the adapters.

    `numbers` are those of the adapters that the layers stack: the ones in the batch, without
    repetition, and few others. Empty if no row has an adapter.
    """

    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = ()
        self.version = 0
        """Increases when a pass reads other tensors than the pass before; only on GPUs."""
        self.memory: FlatMemory | None = None
        """For the stacks of `numbers`; None allocates each tensor separately."""
        self._stacked: tuple[int, ...] = ()
        self._positions = torch.empty(0, dtype=torch.int64)
        self._masks: dict[tuple[int, ...], torch.Tensor] = {}

    def set(self, spans: Sequence[Span]) -> None:
        """Set the rows of the next pass."""
        self._set_numbers(spans)
        self._masks = {}
        if self.numbers:
            self._positions = self._find_positions(spans)

    def set_all(self, number: int) -> None:
        """Set the same adapter, or 0, for all rows of the next passes, however many they are."""
        self.set([(number, 1)])

    def find_positions(self, num_rows: int) -> torch.Tensor:  # noqa: ARG002 - on GPUs, it counts
        """Return each row's index in `numbers`, -1 for none; one element if all are the same."""
        return self._positions

    def find_others(self, ranks: tuple[int, ...], num_rows: int) -> torch.Tensor | None:  # noqa: ARG002
        """Return a mask `[rows, sum of ranks]`: true in the columns of adapters of other rows.

        None if all rows have the same adapter, and it is the only one.
        """
        if len(self._positions) == len(self.numbers) == 1:
            return None
        if (others := self._masks.get(ranks)) is None:
            others = self._positions[:, None] != _list_owners(ranks)
            self._masks[ranks] = others
        return others

    def keep(self, tensors: object) -> None:
        """Keep tensors while passes may use them that started before; on a CPU, none do."""

    def _set_numbers(self, spans: Sequence[Span]) -> None:
        present = {number for number, _ in spans} - {0}
        if present:
            self._stacked = self._choose_numbers(present)
        self.numbers = self._stacked if present else ()

    def _choose_numbers(self, present: AbstractSet[int]) -> tuple[int, ...]:
        """Choose the adapters to stack: the last ones while at least half of them are present.

        Otherwise every request that ends would make each layer stack its factors again.
        """
        if present <= set(self._stacked) and len(self._stacked) <= 2 * len(present):
            return self._stacked
        return tuple(sorted(present))

    def _find_positions(self, spans: Sequence[Span]) -> torch.Tensor:
        places = {number: place for place, number in enumerate(self.numbers)} | {0: -1}
        if all(number == spans[0][0] for number, _ in spans):
            return torch.tensor([places[spans[0][0]]])
        of_spans = torch.tensor([places[number] for number, _ in spans])
        return of_spans.repeat_interleave(torch.tensor([rows for _, rows in spans]))


class StaticRowAdapters(RowAdapters):
    """Row adapters in tensors that stay where they are, so that CUDA graphs can read them.

    While `numbers` are the same, each pass only writes new values into the same tensors. A graph
    also pads a pass to more rows than it has; those have any adapter, and nobody reads them.
    """

    def __init__(self, device: torch.device, max_rows: int) -> None:
        super().__init__()
        self._device = device
        self._places = torch.full((max_rows,), -1, device=device)
        self._is_same = False  # whether all rows have the adapter of the first
        self._kept: list[object] = []

    def set(self, spans: Sequence[Span]) -> None:
        """Set the rows of the next pass, which starts when the values are written."""
        self._write(spans, is_same=False)

    def set_all(self, number: int) -> None:
        """Set the same adapter, or 0, for all rows of the next passes, which use no graph."""
        self._write([(number, 1)], is_same=True)

    def find_positions(self, num_rows: int) -> torch.Tensor:
        """Return each row's index in `numbers`, -1 for none; one element if all are the same."""
        return self._places[: 1 if self._is_same else num_rows]

    def find_others(self, ranks: tuple[int, ...], num_rows: int) -> torch.Tensor | None:
        """Return the mask of `RowAdapters.find_others`; never None: all passes are alike."""
        if (others := self._masks.get(ranks)) is None:
            others = self._places[:, None] != _list_owners(ranks).to(self._device)
            self._masks[ranks] = others
        return others[: 1 if self._is_same else num_rows]

    def keep(self, tensors: object) -> None:
        """Keep tensors until the numbers change: a graph reads them, though no layer has them."""
        self._kept.append(tensors)

    def _write(self, spans: Sequence[Span], *, is_same: bool) -> None:
        before = self._stacked
        self._set_numbers(spans)
        self._is_same = is_same
        if self._stacked != before:
            self._masks, self._kept = {}, []
            self.version += 1
        if not self.numbers:
            return
        positions = self._find_positions(spans)
        num_rows = sum(rows for _, rows in spans)
        self._places[:num_rows].copy_(positions)
        for ranks, others in self._masks.items():
            owners = _list_owners(ranks).to(self._device)
            torch.ne(self._places[:num_rows, None], owners, out=others[:num_rows])
        if self._device.type == "cuda":  # the pass runs in another stream
            torch.cuda.current_stream(self._device).synchronize()

    def _choose_numbers(self, present: AbstractSet[int]) -> tuple[int, ...]:
        """Choose the adapters to stack: also those of earlier passes, while they are few.

        For others, graphs are captured again, which takes as long as many passes.
        """
        if present <= set(self._stacked):
            return self._stacked
        both = present | set(self._stacked)
        return tuple(sorted(both if len(both) <= _MAX_STATIC else present))


def _list_owners(ranks: tuple[int, ...]) -> torch.Tensor:
    """Return the index of the adapter that each column belongs to, `[sum of ranks]`."""
    return torch.arange(len(ranks)).repeat_interleave(torch.tensor(ranks))
