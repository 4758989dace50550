"""The product of a layer with an adapter of low rank, x Wᵀ + s (x Aᵀ) Bᵀ, in few operations.

PEFT computes it by three layers, a multiplication and an addition, whose results have the size of
the output, and ZeRO stage 3 gathers the weights of each layer by itself. Here the product of the
adapter is added within the matrix product, and so is its part of the gradient of x.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch


def fuse_products(model: torch.nn.Module) -> None:
    """Let PEFT's layers compute by `multiply_adapted` where that is all they would compute.

    Others are left as they are: DoRA, dropout, and layers that are quantised or not linear.
    """
    from peft.tuners.lora.layer import Linear

    for layer in model.modules():
        if type(layer) is Linear and type(layer.base_layer) is torch.nn.Linear:
            layer.forward = partial(_compute, layer, layer.forward)


def gather_together(model: torch.nn.Module) -> None:
    """Let ZeRO stage 3 gather all weights of a fused layer as those of one layer."""
    import deepspeed

    for layer in find_fused(model):
        for parameter in layer.parameters():
            deepspeed.zero.register_external_parameter(layer, parameter)


def find_fused(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Return the layers of which `fuse_products` has replaced the computation."""
    for layer in model.modules():
        forward = layer.forward
        if isinstance(forward, partial) and forward.func is _compute:
            yield layer


def multiply_adapted(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return x Wᵀ + bias + s (x Aᵀ) Bᵀ (Hu et al. 2021, arXiv 2106.09685).

    It has gradients for x, A and B; `weight` and `bias` are frozen. The shapes are `[…, in]` of
    `inputs`, `[out, in]`, `[out]`, `[rank, in]` and `[out, rank]`; all have the same dtype.
    """
    product: torch.Tensor = _AdaptedProduct.apply(  # type: ignore[no-untyped-call]
        inputs, weight, bias, a, b, scale
    )
    return product


class _AdaptedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        a: torch.Tensor,
        b: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        flat = inputs.reshape(-1, inputs.shape[-1])
        low = flat @ a.t()
        product = flat @ weight.t() if bias is None else torch.addmm(bias, flat, weight.t())
        product.addmm_(low, b.t(), alpha=scale)
        ctx.save_for_backward(flat, weight, a, b, low)
        ctx.scale, ctx.shape = scale, inputs.shape
        return product.view(*inputs.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients: with g = s dY B, dA = gᵀ x, dB = s dYᵀ x Aᵀ and dx = dY W + g A."""
        flat, weight, a, b, low = ctx.saved_tensors
        gradient = gradients[0].reshape(len(flat), -1)
        of_low = (gradient @ b).mul_(ctx.scale)
        of_a = of_low.t() @ flat
        of_b = (gradient.t() @ low).mul_(ctx.scale)
        of_inputs = None
        if ctx.needs_input_grad[0]:
            of_inputs = (gradient @ weight).addmm_(of_low, a).view(ctx.shape)
        return of_inputs, None, None, of_a, of_b, None


def _compute(
    layer: Any,
    compute_by_parts: Callable[..., torch.Tensor],
    inputs: torch.Tensor,
    *arguments: Any,
    **options: Any,
) -> torch.Tensor:
    """Compute a layer of PEFT, by its own parts where they compute more than one plain adapter."""
    if arguments or options or not _is_plain(layer, inputs):
        return compute_by_parts(inputs, *arguments, **options)
    name = layer.active_adapters[0]
    base = layer.base_layer
    a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
    return multiply_adapted(inputs, base.weight, base.bias, a, b, layer.scaling[name])


def _is_plain(layer: Any, inputs: torch.Tensor) -> bool:
    """Return whether one adapter is active, without dropout or variants, and all dtypes are equal.

    Autocast would convert the weights again for each product.
    """
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return False
    name = layer.active_adapters[0]
    if name not in layer.lora_A or name in layer.lora_variant or layer.lora_bias[name]:
        return False
    learned = (layer.lora_A[name].weight, layer.lora_B[name].weight)
    return (
        isinstance(layer.lora_dropout[name], torch.nn.Identity)
        and not layer.base_layer.weight.requires_grad
        and all(one.dtype == inputs.dtype for one in (layer.base_layer.weight, *learned))
        and not torch.is_autocast_enabled(inputs.device.type)
    )
