"""One block of memory for many tensors that are freed together.

Separate tensors leave holes between other allocations when they are freed, and larger ones do not
fit into them: loading and stacking eight adapters of 6 MB took 23 MB for each.
"""

import math
from collections.abc import Iterable, Sequence

import torch

_ALIGNMENT = 64
Layout = tuple[Sequence[int], torch.dtype]
"""The shape and the dtype of a tensor."""


class Arena:
    """Allocates tensors in a block that has room for `layouts`."""

    def __init__(self, layouts: Iterable[Layout], device: torch.device) -> None:
        size = sum(map(_measure, layouts))
        self._block = torch.empty(size, dtype=torch.uint8, device=device)
        self._used = 0

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor without values; a separate one if the block has no room left."""
        size = _measure((shape, dtype))
        part = self._block[self._used : self._used + size]
        if len(part) < size:
            return torch.empty(shape, dtype=dtype, device=self._block.device)
        self._used += size
        return part[: math.prod(shape) * dtype.itemsize].view(dtype).view(*shape)


def _measure(layout: Layout) -> int:
    """Return the bytes of a tensor, rounded up so that the next one is aligned."""
    shape, dtype = layout
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
