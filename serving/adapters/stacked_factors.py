"""The factors of adapters in one layer, one by one and stacked."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from serving.adapters.arena import Arena, Layout
from serving.adapters.row_adapters import Ranks


class Factors(NamedTuple):
    """One adapter's factors in the dtype of the layer; the scale is part of `b`.

    Gains are close to 1, and half precision would round most of what was learned away.
    """

    a: torch.Tensor  # [r, in]
    b: torch.Tensor  # [r, out]
    gain: torch.Tensor | None  # [out] in fp32, by which DoRA multiplies W x


class Stack(NamedTuple):
    """The factors of all adapters of a batch; R is the sum of their ranks."""

    a: torch.Tensor  # [R, in]
    b: torch.Tensor  # [R, out], in fp32 beside gains
    ranks: Ranks
    # [adapters + 1, out] in fp32: gains, less 1; the last row is that of the model itself
    gains_less_1: torch.Tensor | None


class FactorList(tuple[Factors | None, ...]):
    """The factors of some adapters in one layer, None for those that do not change it."""

    __slots__ = ()

    def list_layouts(self) -> list[Layout]:
        """List the tensors of their stack; none if no adapter changes the layer."""
        present = self._list_present()
        if not present:
            return []
        rank = sum(len(one.a) for one in present)
        (_, num_in), (_, num_out) = present[0].a.shape, present[0].b.shape
        a_dtype, b_dtype = present[0].a.dtype, present[0].b.dtype
        if not self._have_gains():
            return [((rank, num_in), a_dtype), ((rank, num_out), b_dtype)]
        gains: Layout = ((len(self) + 1, num_out), torch.float32)
        return [((rank, num_in), a_dtype), ((rank, num_out), torch.float32), gains]

    def stack(self, layouts: Sequence[Layout], arena: Arena) -> Stack | None:
        """Copy the factors into tensors of these layouts; None if no adapter changes the layer."""
        present = self._list_present()
        if not present:
            return None
        a, b, *gains = (arena.allocate(*layout) for layout in layouts)
        for one in present:  # another thread may remove it before the copies are complete
            for tensor in one:
                if tensor is not None and tensor.is_cuda:
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
        torch.cat([one.a for one in present], out=a)
        torch.cat([one.b.to(b.dtype) for one in present], out=b)
        for gains_less_1 in gains:
            gains_less_1.zero_()
            for row, factors in zip(gains_less_1, self, strict=False):  # the last row has none
                if factors is not None and factors.gain is not None:
                    torch.sub(factors.gain, 1, out=row)
        ranks = tuple(0 if one is None else len(one.a) for one in self)
        return Stack(a, b, ranks, gains[0] if gains else None)

    def _list_present(self) -> list[Factors]:
        return [one for one in self if one is not None]

    def _have_gains(self) -> bool:
        return any(one.gain is not None for one in self._list_present())
