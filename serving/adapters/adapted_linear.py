"""A linear layer that adds to each row of a batch the product of that row's adapter.

The factors of the adapters in a batch are stacked: two matrix products compute those of all rows,
and a mask keeps of the first product only the columns of the row's own adapter. For the ranks that
adapters have, this costs less than sorting the rows by adapter, as kernels for GPUs do (Punica,
arXiv 2310.18547; S-LoRA, arXiv 2311.03285).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from serving.adapters.adapter_file import LayerFactors
from serving.adapters.arena import Arena
from serving.adapters.row_adapters import RowAdapters
from serving.adapters.stacked_factors import FactorList, Factors, Stack
from serving.cpu.packed_linear import PackedLinear
from serving.errors import EngineDeadError

ADAPTABLE = (PackedLinear, nn.Linear, Conv1D)
_NAMES = {"a": "lora_A", "b": "lora_B, scaled,", "gain": "lora_magnitude_vector"}


class AdaptedLinear(nn.Module):
    """A linear layer of a model, with the factors of the adapters that change it."""

    def __init__(self, base: Any, rows: RowAdapters) -> None:
        super().__init__()
        self.base = base
        self._rows = rows
        self._factors: dict[int, Factors] = {}
        self.stack: Stack | None = None
        """The factors of the adapters in the batch; set before each pass that has others."""

    @property
    def weight(self) -> torch.Tensor:
        """The weight of the layer itself; some models read its dtype."""
        weight: torch.Tensor = self.base.weight
        return weight

    def add(self, number: int, factors: LayerFactors, arena: Arena) -> None:
        """Add the factors of an adapter, in `arena` if it has room for them.

        Raises `EngineDeadError` if their shapes do not fit, or a value is not finite in the dtype
        of the layer: it would spread to other rows.
        """
        num_out, num_in = _find_shape(self.base)
        if factors.a.size(1) != num_in or factors.b.size(0) != num_out:
            raise EngineDeadError(
                f"factors of {list(factors.b.shape)} and {list(factors.a.shape)} do not fit a "
                f"layer of {num_out} × {num_in}"
            )
        device = self.base.weight.device
        a, b = factors.a.to(device).float(), factors.b.to(device).float() * factors.scale
        gain = None
        if factors.magnitude is not None:
            weight = _find_dense_weight(self.base)  # [out, in]
            length = torch.linalg.vector_norm(weight.float() + b @ a, dim=1)  # [out]
            gain = factors.magnitude.to(device).float().flatten() / length
            gain[length == 0] = 1.0
            b = b * gain[:, None]
        dtype = self.base.weight.dtype
        found = Factors(_place(a, dtype, arena), _place(b.T, dtype, arena), gain)
        for name, tensor in found._asdict().items():
            if tensor is not None and not bool(torch.isfinite(tensor).all()):
                raise EngineDeadError(
                    f"a value of its {_NAMES[name]} is not finite in {str(dtype)[6:]}"
                )
        self._factors[number] = found

    def remove(self, number: int) -> None:
        """Remove the factors of an adapter, if the layer has any; the stack may still have them."""
        self._factors.pop(number, None)

    def find_factors(self, numbers: Sequence[int]) -> FactorList:
        """Return the factors of adapters, in order."""
        return FactorList(self._factors.get(number) for number in numbers)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map `[..., rows, in]` to `[..., rows, out]`, each row with its adapter."""
        outputs: torch.Tensor = self.base(inputs)
        stack = self.stack if self._rows.numbers else None
        if stack is None:
            return outputs
        product = linear(inputs, stack.a)  # [..., rows, R]
        if (mask := self._rows.find_mask(stack.ranks, inputs.size(-2))) is not None:
            product.masked_fill_(mask, 0)  # not a product by 0, which keeps what is not finite
        sums = outputs
        if stack.gains_less_1 is not None:
            sums = self._multiply_gains(outputs, stack.gains_less_1)
            product = product.float()
        flat = sums.reshape(-1, sums.size(-1))
        flat.addmm_(product.reshape(-1, product.size(-1)), stack.b)
        return flat.view_as(outputs).to(outputs.dtype)

    def _multiply_gains(self, outputs: torch.Tensor, gains_less_1: torch.Tensor) -> torch.Tensor:
        """Multiply W x by the gain of each row, in fp32; rows without one stay as they are."""
        wide = outputs.float()
        bias = self.base.bias
        product = wide if bias is None else wide - bias
        by_row = gains_less_1[self._rows.find_positions(outputs.size(-2))]  # -1 is the last row
        # Not a product by 0 either: in half precision, a row without an adapter may be infinite.
        return torch.where(by_row == 0, wide, torch.addcmul(wide, product, by_row))


def _place(tensor: torch.Tensor, dtype: torch.dtype, arena: Arena) -> torch.Tensor:
    return arena.allocate(tensor.shape, dtype).copy_(tensor)


def _find_shape(layer: Any) -> tuple[int, int]:
    """Return the numbers of outputs and inputs of a layer, without unpacking its weight."""
    rows, columns = layer.weight.shape
    return (columns, rows) if isinstance(layer, Conv1D) else (rows, columns)


def _find_dense_weight(layer: Any) -> torch.Tensor:
    """Return the weight of a layer as `[out, in]`, unpacked if it is packed."""
    weight: torch.Tensor = layer.weight.detach()
    if isinstance(layer, PackedLinear):
        dense: torch.Tensor = weight.to_dense()
        return dense
    return weight.T if isinstance(layer, Conv1D) else weight
