"""The adapter of each row of a forward pass, as all adapted layers of a model share it."""

from collections.abc import Collection, Iterable, Sequence

import torch

MAX_STATIC = 16
"""Most adapters that a GPU stacks, unless a batch has more."""

Span = tuple[int, int]
"""The number of an adapter, 0 for the model itself, and a count of rows that have it."""
Ranks = tuple[int, ...]
"""The ranks of the stacked adapters in one layer, 0 for those that do not change it."""


class RowAdapters:
    """The adapter of each row of the current pass, by the numbers of the adapters.

    `numbers` are those of the adapters that the layers stack: the ones in the batch, without
    repetition, and few others. Empty if no row has an adapter.
    """

    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = ()
        self._stacked: tuple[int, ...] = ()
        self._positions = torch.empty(0, dtype=torch.int64)
        self._masks: dict[Ranks, torch.Tensor] = {}

    def choose_numbers(self, spans: Sequence[Span], loaded: Collection[int]) -> tuple[int, ...]:
        """Choose the adapters to stack for the next pass, of those that are loaded."""
        present = {number for number, _ in spans} - {0}
        if present:
            stacked = [number for number in self._stacked if number in loaded]
            self._stacked = tuple(sorted(self._choose(present, stacked)))
        self.numbers = self._stacked if present else ()
        return self.numbers

    def prepare_masks(self, all_ranks: Iterable[Ranks]) -> None:
        """Make room for the masks of newly stacked layers; called before `set_rows`."""

    def set_rows(self, spans: Sequence[Span], *, is_endless: bool = False) -> None:
        """Set the rows of the next pass, after their numbers.

        With `is_endless`, all rows of the next passes have the adapter of the only span, however
        many they are.
        """
        self._masks = {}
        if self.numbers:
            self._positions = self._find_positions(spans, is_endless=is_endless)

    def find_positions(self, num_rows: int) -> torch.Tensor:  # noqa: ARG002 - on GPUs, it counts
        """Return each row's index in `numbers`, -1 for none; one element if all are the same."""
        return self._positions

    def find_mask(self, ranks: Ranks, num_rows: int) -> torch.Tensor | None:  # noqa: ARG002
        """Return a mask `[rows, sum of ranks]`: true in the columns of adapters of other rows.

        None if all rows have the same adapter, and it is the only one.
        """
        if len(self._positions) == len(self.numbers) == 1:
            return None
        if (mask := self._masks.get(ranks)) is None:
            mask = self._positions[:, None] != list_owners(ranks)
            self._masks[ranks] = mask
        return mask

    def _choose(self, present: set[int], stacked: Collection[int]) -> Collection[int]:
        """Choose the last ones while at least half of them are present.

        Otherwise every request that ends would make each layer stack its factors again.
        """
        if present <= set(stacked) and len(stacked) <= 2 * len(present):
            return stacked
        return present

    def _find_positions(self, spans: Sequence[Span], *, is_endless: bool) -> torch.Tensor:
        places = {number: place for place, number in enumerate(self.numbers)} | {0: -1}
        if is_endless or all(number == spans[0][0] for number, _ in spans):
            return torch.tensor([places[spans[0][0]]])
        of_spans = torch.tensor([places[number] for number, _ in spans])
        return of_spans.repeat_interleave(torch.tensor([rows for _, rows in spans]))


class StaticRowAdapters(RowAdapters):
    """Row adapters in tensors that stay where they are, so that CUDA graphs can read them.

    While `numbers` are the same, each pass only writes new values into the same tensors. A graph
    also pads a pass to more rows than it has; those have no adapter.
    """

    def __init__(self, device: torch.device, max_rows: int) -> None:
        super().__init__()
        self._positions = torch.full((max_rows,), -1, device=device)
        self._owners: dict[Ranks, torch.Tensor] = {}
        self._is_endless = False
        self._num_passes = 0
        self._last_passes: dict[int, int] = {}  # by adapter

    def prepare_masks(self, all_ranks: Iterable[Ranks]) -> None:
        """Allocate the masks of newly stacked layers; called before `set_rows`."""
        device, num_rows = self._positions.device, len(self._positions)
        self._owners = {ranks: list_owners(ranks).to(device) for ranks in all_ranks}
        self._masks = {
            ranks: torch.empty(num_rows, len(owners), dtype=torch.bool, device=device)
            for ranks, owners in self._owners.items()
        }

    def set_rows(self, spans: Sequence[Span], *, is_endless: bool = False) -> None:
        """Set the rows of the next pass, which may start when this returns."""
        self._is_endless = is_endless
        if not self.numbers:
            return
        found = self._find_positions(spans, is_endless=is_endless)
        num_rows = 1 if is_endless else sum(rows for _, rows in spans)
        positions = torch.full((len(self._positions),), -1)
        positions[:num_rows] = found
        self._positions.copy_(positions)
        for ranks, mask in self._masks.items():
            torch.ne(self._positions[:, None], self._owners[ranks], out=mask)
        if self._positions.is_cuda:  # the pass runs in another stream
            torch.cuda.current_stream(self._positions.device).synchronize()

    def find_positions(self, num_rows: int) -> torch.Tensor:
        """Return each row's index in `numbers`, -1 for none; one element if all are the same."""
        return self._positions[: 1 if self._is_endless else num_rows]

    def find_mask(self, ranks: Ranks, num_rows: int) -> torch.Tensor | None:
        """Return the mask of `RowAdapters.find_mask`; never None, so that all passes are alike."""
        return self._masks[ranks][: 1 if self._is_endless else num_rows]

    def _choose(self, present: set[int], stacked: Collection[int]) -> Collection[int]:
        """Choose also those of earlier passes, the last used ones, while they are few.

        For others, graphs are captured again, which takes as long as many passes.
        """
        self._num_passes += 1
        self._last_passes |= dict.fromkeys(present, self._num_passes)
        if present <= set(stacked):
            return stacked
        others = sorted(set(stacked) - present, key=self._last_passes.__getitem__, reverse=True)
        chosen = present.union(others[: max(0, MAX_STATIC - len(present))])
        self._last_passes = {number: self._last_passes[number] for number in chosen}
        return chosen


def list_owners(ranks: Ranks) -> torch.Tensor:
    """Return the index of the adapter that each column belongs to, `[sum of ranks]`."""
    return torch.arange(len(ranks)).repeat_interleave(torch.tensor(ranks))
