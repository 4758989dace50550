"""Linear layers whose weights are prepacked in the memory layout of the CPU's kernels."""

import torch
from torch import nn


class PackedLinear(nn.Module):
    """A `Linear` with weights prepacked by oneDNN, for inference only.

    Without it, oneDNN repacks the weights in every call, and MKL, which torch uses for fp32, is
    poorly optimized for some processors. With it, a call takes half of the time for one token, and
    for 16 tokens two thirds in bf16 and 40 % in fp32.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        # [out, in], opaque except for dtype and shape
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map `[..., in]` to `[..., out]`."""
        # The last three arguments describe a fused activation; there is none.
        outputs: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self.weight, self.bias, "none", [], ""
        )
        return outputs


def pack_linear_layers(model: nn.Module) -> None:
    """Replace the linear layers of a model on a CPU by packed ones, if the CPU supports them.

    Layers are replaced one by one, so that memory never has two copies of the model. Weights that
    another module shares, such as an embedding tied to the head, remain in addition to the copy.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    parents = [module for module in model.modules() if not isinstance(module, nn.Linear)]
    for parent in parents:
        for name, child in parent.named_children():
            if type(child) is nn.Linear and _can_pack(child.weight):
                setattr(parent, name, PackedLinear(child))


def _can_pack(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and (
        weight.dtype == torch.float32
        or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        or (weight.dtype == torch.float16 and torch.ops.mkldnn._is_mkldnn_fp16_supported())
    )
