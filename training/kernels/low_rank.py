"""The product of a layer with an adapter of low rank, x Wᵀ + s (x Aᵀ) Bᵀ, in few operations.

PEFT computes it by three layers, a multiplication and an addition, whose results have the size of
the output, and ZeRO stage 3 gathers the weights of each of these layers by itself. Here the product
of the adapter is added within the matrix product, and so is its part of the gradient of x. Stage 3
gathers the weights together: DeepSpeed notices that the layer uses those of its parts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable


def fuse_products(model: torch.nn.Module) -> None:
    """Let PEFT's layers compute by `multiply_adapted` where that is all they would compute.

    Others are left as they are: DoRA, dropout, and layers that are quantised or not linear.
    """
    from peft.tuners.lora.layer import Linear

    for layer in model.modules():
        if type(layer) is Linear and type(layer.base_layer) is torch.nn.Linear:
            layer.forward = partial(_compute_layer, layer, layer.forward)


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
    flat = inputs.reshape(-1, inputs.shape[-1])
    product: torch.Tensor = _AdaptedProduct.apply(  # type: ignore[no-untyped-call]
        flat, weight, bias, a, b, scale
    )
    return product.view(*inputs.shape[:-1], len(weight))  # a model may change it in place


class _AdaptedProduct(torch.autograd.Function):
    """`multiply_adapted` of a matrix `[tokens, in]`."""

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
        low = inputs @ a.t()
        product = inputs @ weight.t() if bias is None else torch.addmm(bias, inputs, weight.t())
        product.addmm_(low, b.t(), alpha=scale)
        ctx.save_for_backward(inputs, weight, a, b, low)
        ctx.scale = scale
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients: with g = s dY B, dA = gᵀ x, dB = s dYᵀ x Aᵀ and dx = dY W + g A."""
        inputs, weight, a, b, low = ctx.saved_tensors
        (gradient,) = gradients
        low_gradient = (gradient @ b).mul_(ctx.scale)
        a_gradient = low_gradient.t() @ inputs
        b_gradient = (gradient.t() @ low).mul_(ctx.scale)
        input_gradient = None
        if ctx.needs_input_grad[0]:
            input_gradient = (gradient @ weight).addmm_(low_gradient, a)
        return input_gradient, None, None, a_gradient, b_gradient, None


def _compute_layer(
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
    base = layer.base_layer
    learned = (layer.lora_A[name].weight, layer.lora_B[name].weight)
    return (
        isinstance(layer.lora_dropout[name], torch.nn.Identity)
        and not any(one.requires_grad for one in base.parameters())
        and all(one.dtype == inputs.dtype for one in (base.weight, *learned))
        and not torch.is_autocast_enabled(inputs.device.type)
    )
