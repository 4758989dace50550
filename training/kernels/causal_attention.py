"""Causal attention on CPUs in bf16, by blocks of queries.

PyTorch's kernel for attention on CPUs is slow in bf16, above all its gradients: 50 to 140 ms for
micro batches of 2,048 tokens and 8 heads on one core of an AMD EPYC with AVX-512, of which the
products of matrices are a tenth. Here the products are those of batched matrices, which oneDNN
computes: 9 to 40 ms. A block of queries is multiplied with the keys up to its end, which leaves out
most of what the causal mask hides.

The probabilities are kept for the backward pass rather than computed again, half a matrix
`[tokens, tokens]` for each head, so rows of more than 1,024 tokens are left to PyTorch.
"""

from typing import Any

import torch

_NAME = "causal_blocks"
_BLOCK = 128  # queries; 64 and 256 are slower by up to a tenth
_MAX_TOKENS = 1024
# Arguments by which models ask for more than softmax(q k) v.
_EXTRAS = ("cache", "position_bias", "s_aux", "softcap")


def attend_by_blocks(model: Any) -> None:
    """Let a model in training use `attend_causally` in place of PyTorch's attention.

    What it does not cover is computed as before: other dtypes, masks, dropout, long rows, and
    passes without gradients. A model with another attention than PyTorch's is left as it is.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    # The names are those of transformers, which has no public way to ask for them.
    if model.config._attn_implementation != "sdpa" or not model._can_set_attn_implementation():
        return
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, AttentionMaskInterface()["sdpa"])
    model.set_attn_implementation(_NAME)


def attend_causally(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return softmax(scale · q kᵀ) v, where no token sees a later one (arXiv 1706.03762).

    `query` has the shape `[rows, heads, tokens, width]`, and so has the result but for the width of
    `value`. `key` and `value` may have fewer heads, each for a group of neighbouring queries.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    flat = (one.reshape(-1, *one.shape[2:]) for one in (query, key, value))
    attended: torch.Tensor = _CausalBlocks.apply(*flat, scale)  # type: ignore[no-untyped-call]
    return attended.view(*query.shape[:3], value.shape[-1])


class _CausalBlocks(torch.autograd.Function):
    """`attend_causally` of tensors `[heads, tokens, width]`, with as many heads each."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        tokens = query.shape[1]
        attended = torch.empty_like(value)
        hidden = torch.ones(_BLOCK, _BLOCK, dtype=torch.bool, device=query.device).triu_(1)
        blocks = []
        for start in range(0, tokens, _BLOCK):
            end = min(start + _BLOCK, tokens)
            size = end - start
            seen = key[:, :end].transpose(1, 2)
            nothing = query.new_empty(len(query), size, end)  # ignored, as beta is 0
            scores = torch.baddbmm(nothing, query[:, start:end], seen, beta=0, alpha=scale)
            scores[:, :, start:].masked_fill_(hidden[:size, :size], -torch.inf)
            blocks.append(torch.softmax(scores, dim=-1))
            attended[:, start:end] = torch.bmm(blocks[-1], value[:, :end])
        ctx.save_for_backward(query, key, value, attended, *blocks)
        ctx.scale = scale
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of q, k and v.

        With S = c q kᵀ, P = softmax(S) and O = P v: dv = Pᵀ dO, dP = dO vᵀ,
        dS = P ∘ (dP - rowsum(dO ∘ O)), dq = c dS k and dk = c dSᵀ q (Dao et al. 2022, arXiv
        2205.14135, appendix B.2).
        """
        query, key, value, attended, *blocks = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        wide = torch.promote_types(query.dtype, torch.float32)
        products = gradient.to(wide) * attended.to(wide)
        of_rows = products.sum(-1, keepdim=True).to(query.dtype)
        of_query = torch.empty_like(query)
        of_key, of_value = torch.zeros_like(key), torch.zeros_like(value)
        for number, weights in enumerate(blocks):
            start = number * _BLOCK
            end = start + weights.shape[1]
            above = gradient[:, start:end]
            of_value[:, :end].baddbmm_(weights.transpose(1, 2), above)
            of_scores = torch.bmm(above, value[:, :end].transpose(1, 2))
            of_scores.sub_(of_rows[:, start:end]).mul_(weights)
            of_query[:, start:end] = torch.bmm(of_scores, key[:, :end])
            of_key[:, :end].baddbmm_(of_scores.transpose(1, 2), query[:, start:end])
        return of_query.mul_(ctx.scale), of_key.mul_(ctx.scale), of_value, None


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention as transformers asks for it; returns `[rows, tokens, heads, width]`."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    computed: tuple[torch.Tensor, None]
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (one.to(dtype) for one in (query, key, value))
    if attention_mask is not None or not _is_covered(module, query, key, options):
        computed = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return computed
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    return attend_causally(query, key, value, scale).transpose(1, 2).contiguous(), None


def _is_covered(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, options: dict[str, Any]
) -> bool:
    is_causal = options.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    return bool(
        is_causal
        and query.dtype == torch.bfloat16
        and query.device.type == "cpu"
        and torch.is_grad_enabled()
        and query.shape[2] == key.shape[2] <= _MAX_TOKENS
        and not options.get("dropout")
        and all(options.get(name) is None for name in _EXTRAS)
    )
