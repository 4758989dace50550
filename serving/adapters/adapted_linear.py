"""A linear layer that adds to each row of a batch the product of that row's adapter.

The factors of the adapters in a batch are stacked: two matrix products compute those of all rows,
and a mask keeps of the first product only the columns of the row's own adapter. For the ranks that
adapters have, this costs less than sorting the rows by adapter, as kernels for GPUs do (Punica,
arXiv 2310.18547; S-LoRA, arXiv 2311.03285).
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from serving.adapters.adapter_file import LayerFactors
from serving.cpu.packed_linear import PackedLinear
from serving.errors import EngineDeadError

ADAPTABLE = (PackedLinear, nn.Linear, Conv1D)


class RowAdapters:
    """The adapter of each row of the current forward pass, by the numbers of the adapters.

    All layers share it. `numbers` are those of the adapters in the batch, without repetition.
    """

    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = ()
        self.positions = torch.empty(0, dtype=torch.int64)
        """Each row's index in `numbers`, -1 for none; one element if all rows have the same."""
        self._masks: dict[tuple[tuple[int, ...], torch.dtype], torch.Tensor] = {}

    def set(self, spans: list[tuple[int, int]]) -> None:
        """Set the rows of the next pass: pairs of an adapter's number and a count of rows.

        The number 0 is the model itself.
        """
        self.numbers = tuple(sorted({number for number, _ in spans} - {0}))
        self._masks = {}
        if not self.numbers:
            return
        places = {number: place for place, number in enumerate(self.numbers)} | {0: -1}
        if all(number == spans[0][0] for number, _ in spans):
            spans = [(spans[0][0], 1)]
        of_spans = torch.tensor([places[number] for number, _ in spans])
        self.positions = of_spans.repeat_interleave(torch.tensor([rows for _, rows in spans]))

    def find_mask(self, ranks: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Return a mask `[rows, sum of ranks]`: 1 in the columns of the row's own adapter.

        None if all rows have the same adapter.
        """
        if len(self.positions) == 1:
            return None
        if (mask := self._masks.get((ranks, dtype))) is None:
            owners = torch.arange(len(ranks)).repeat_interleave(torch.tensor(ranks))
            mask = (self.positions[:, None] == owners).to(dtype)
            self._masks[ranks, dtype] = mask
        return mask


class _Factors(NamedTuple):
    """One adapter's factors in the dtype of the layer; the scale is part of `b`."""

    a: torch.Tensor  # [r, in]
    b: torch.Tensor  # [out, r]
    gain: torch.Tensor | None  # [out], by which DoRA multiplies W x


class _Stack(NamedTuple):
    """The factors of all adapters of a batch; R is the sum of their ranks."""

    a: torch.Tensor  # [R, in]
    b: torch.Tensor  # [R, out]
    ranks: tuple[int, ...]
    gains: torch.Tensor | None  # [adapters + 1, out]; the last row is that of the model itself


class AdaptedLinear(nn.Module):
    """A linear layer of a model, with the factors of the adapters that change it."""

    def __init__(self, base: Any, rows: RowAdapters) -> None:
        super().__init__()
        self.base = base
        self._rows = rows
        self._factors: dict[int, _Factors] = {}
        self._stacks: tuple[tuple[int, ...], _Stack | None] = ((), None)

    @property
    def weight(self) -> torch.Tensor:
        """The weight of the layer itself; some models read its dtype."""
        weight: torch.Tensor = self.base.weight
        return weight

    def add(self, number: int, factors: LayerFactors) -> None:
        """Add the factors of an adapter; raises `EngineDeadError` if their shapes do not fit."""
        weight = _find_dense_weight(self.base)  # [out, in]
        num_out, num_in = weight.shape
        if factors.a.size(1) != num_in or factors.b.size(0) != num_out:
            raise EngineDeadError(
                f"factors of {list(factors.b.shape)} and {list(factors.a.shape)} do not fit a "
                f"layer of {num_out} × {num_in}"
            )
        a, b = factors.a.float(), factors.b.float() * factors.scale
        gain = None
        if factors.magnitude is not None:
            length = torch.linalg.vector_norm(weight.float() + b @ a, dim=1)  # [out]
            gain = factors.magnitude.float().flatten() / length
            b = b * gain[:, None]
        dtype = self.base.weight.dtype
        self._factors[number] = _Factors(
            a.to(dtype), b.to(dtype), None if gain is None else gain.to(dtype)
        )

    def remove(self, number: int) -> None:
        """Remove the factors of an adapter, if the layer has any."""
        self._factors.pop(number, None)
        self._stacks = ((), None)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map `[..., rows, in]` to `[..., rows, out]`, each row with its adapter."""
        outputs: torch.Tensor = self.base(inputs)
        stack = self._find_stack() if self._rows.numbers else None
        if stack is None:
            return outputs
        if stack.gains is not None:
            outputs = self._multiply_gains(outputs, stack.gains)
        product = linear(inputs, stack.a)  # [..., rows, R]
        if (mask := self._rows.find_mask(stack.ranks, product.dtype)) is not None:
            product *= mask
        flat = outputs.reshape(-1, outputs.size(-1))
        flat.addmm_(product.reshape(-1, product.size(-1)), stack.b)
        return flat.view_as(outputs)

    def _multiply_gains(self, outputs: torch.Tensor, gains: torch.Tensor) -> torch.Tensor:
        bias = self.base.bias
        by_row = gains[self._rows.positions]  # -1 is the last row
        if bias is None:
            return outputs * by_row
        scaled: torch.Tensor = (outputs - bias) * by_row + bias
        return scaled

    def _find_stack(self) -> _Stack | None:
        """Return the stacked factors of the batch's adapters; None if none changes this layer."""
        numbers = self._rows.numbers
        stacked, stack = self._stacks  # read once: another thread may unload an adapter meanwhile
        if stacked != numbers:
            stack = self._build_stack(numbers)
            self._stacks = (numbers, stack)
        return stack

    def _build_stack(self, numbers: tuple[int, ...]) -> _Stack | None:
        found = [self._factors.get(number) for number in numbers]
        present = [one for one in found if one is not None]
        if not present:
            return None
        gains = None
        if any(one.gain is not None for one in present):
            ones = torch.ones_like(present[0].b[:, 0])
            of_each = [ones if one is None or one.gain is None else one.gain for one in found]
            gains = torch.stack([*of_each, ones])
        return _Stack(
            torch.cat([one.a for one in present]),
            torch.cat([one.b for one in present], dim=1).T.contiguous(),
            tuple(0 if one is None else one.a.size(0) for one in found),
            gains,
        )


def _find_dense_weight(layer: Any) -> torch.Tensor:
    """Return the weight of a layer as `[out, in]`, unpacked if it is packed."""
    weight: torch.Tensor = layer.weight.detach()
    if isinstance(layer, PackedLinear):
        dense: torch.Tensor = weight.to_dense()
        return dense
    return weight.T if isinstance(layer, Conv1D) else weight
