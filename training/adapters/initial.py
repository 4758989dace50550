"""Adapters that start from the base weights: PiSSA and OLoRA.

Both methods learn B A, which begins as B0 A0, the part of a weight W that matters most, and freeze
the rest, W - s B0 A0. Here W stays as it is, and a layer computes W x + s (B A - B0 A0) x, which is
the same. So the adapter that is published, (B A - B0 A0), fits the base model, and what is frozen
is not rounded. A0 and B0 are buffers, part of every checkpoint: a resumed run needs no
decomposition, whose last bits depend on the machine.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from training.adapters.names import ADAPTER_NAME

_A, _B = "initial_A", "initial_B"


def start_from_weights(
    model: torch.nn.Module, init: str, device: torch.device, *, is_resumed: bool
) -> None:
    """Set every adapted layer's A and B to its A0 and B0, which it subtracts from now on.

    Rank 0 computes them on `device` and broadcasts them. The values of a resumed run come from its
    checkpoint, and are not a number until then.
    """
    from peft.tuners.lora import LoraLayer

    for layer in model.modules():
        if isinstance(layer, LoraLayer) and ADAPTER_NAME in layer.lora_A:
            _start_layer(layer, init, device, is_resumed=is_resumed)


def append_initial(
    name: str, tensor: torch.Tensor, buffers: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """Return A or B of an adapter of twice the rank, whose product is B A - B0 A0.

    A tensor without initial values among the checkpoint's `buffers` is returned as it is. As PEFT
    does it: A over A0, and B beside -B0.
    """
    layer, is_a, _ = name.partition(f".lora_A.{ADAPTER_NAME}.")
    if is_a and (initial := buffers.get(f"{layer}.{_A}")) is not None:
        return torch.cat([tensor, initial.to(tensor.dtype)], dim=0)
    layer, is_b, _ = name.partition(f".lora_B.{ADAPTER_NAME}.")
    if is_b and (initial := buffers.get(f"{layer}.{_B}")) is not None:
        return torch.cat([tensor, -initial.to(tensor.dtype)], dim=1)
    return tensor


def _start_layer(layer: Any, init: str, device: torch.device, *, is_resumed: bool) -> None:
    learned = [layer.lora_A[ADAPTER_NAME].weight, layer.lora_B[ADAPTER_NAME].weight]
    initial = [torch.full_like(one, torch.nan, requires_grad=False) for one in learned]
    if not is_resumed and not learned[0].is_meta:
        initial = _share_initial(layer, init, initial, device)
        for parameter, value in zip(learned, initial, strict=True):
            parameter.data.copy_(value)
    for name, value in zip((_A, _B), initial, strict=True):
        layer.register_buffer(name, value)
    layer.register_forward_hook(_subtract_initial)


def _share_initial(
    layer: Any, init: str, initial: list[torch.Tensor], device: torch.device
) -> list[torch.Tensor]:
    """Compute A0 and B0 on rank 0, in the dtype and on the device of `initial`, on all workers."""
    import deepspeed

    base = layer.get_base_layer()
    sharded = [base.weight] if hasattr(base.weight, "ds_id") else []
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    shared = [one.to(device) for one in initial]
    with deepspeed.zero.GatheredParameters(sharded):
        if is_first:
            weight = base.weight.detach().to(device, torch.float32)
            rows = weight.T if isinstance(base, Conv1D) else weight
            factors = _FACTORISE[init](rows, layer.r[ADAPTER_NAME], layer.scaling[ADAPTER_NAME])
            shared = [one.to(initial[0].dtype).contiguous() for one in factors]
    if dist.is_initialized():
        for one in shared:
            dist.broadcast(one, 0)
    return [one.to(place.device) for one, place in zip(shared, initial, strict=True)]


def _factorise_by_svd(
    weight: torch.Tensor, rank: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A0 and B0 of PiSSA, from the largest singular values: arXiv 2404.02948, eqs. 2-3."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    roots = (values[:rank] / scale).sqrt()
    return roots[:, None] * right[:rank], left[:, :rank] * roots


def _factorise_by_qr(
    weight: torch.Tensor,
    rank: int,
    scale: float,  # noqa: ARG001 - of PiSSA
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A0 and B0 of OLoRA, the first rows of R and columns of Q: arXiv 2406.01775."""
    columns, rows = torch.linalg.qr(weight)
    return rows[:rank], columns[:, :rank]


_FACTORISE = {"pissa": _factorise_by_svd, "olora": _factorise_by_qr}


def _subtract_initial(layer: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> Any:
    """Subtract s B0 A0 x from the output of a layer, unless its adapter is disabled or merged."""
    if layer.disable_adapters or layer.merged:
        return output
    x = inputs[0].to(layer.initial_A.dtype)
    product = linear(linear(x, layer.initial_A), layer.initial_B)
    return output - (layer.scaling[ADAPTER_NAME] * product).to(output.dtype)
