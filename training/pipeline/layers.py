"""The layers of a pipeline: parts of a model of transformers, each from a tensor to the next one.

The hidden states `[rows, tokens, width]` are all that one layer passes to the next. Rows are padded
on the right, so attention needs no mask but the causal one, and positions count from 0.
"""

import copy
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from training.pipeline.weights import BaseWeights


class Layer(torch.nn.Module):
    """A module of the base model, with the weights that it has there.

    `name` is the module's name in the model. Building one reads its weights.
    """

    def __init__(self, weights: BaseWeights, name: str) -> None:
        super().__init__()
        self.name = name
        self.inner: Any = copy.deepcopy(weights.model.get_submodule(name)).to_empty(device="cpu")
        assert not list(self.inner.buffers()), f"{name}: buffers have no value"
        for of_module, parameter in self.inner.named_parameters():
            parameter.data = weights.read(f"{name}.{of_module}")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the module's output: of token ids if it is an embedding, of hidden states."""
        output: torch.Tensor = self.inner(hidden)
        return output


class PositionLayer(Layer):
    """Learned embeddings of positions, added to those of tokens, and dropout."""

    def __init__(self, weights: BaseWeights, name: str, dropout: float) -> None:
        super().__init__(weights, name)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Add the embeddings of positions."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        output: torch.Tensor = self.dropout(hidden + self.inner(positions))
        return output


class DecoderLayer(Layer):
    """A decoder layer, with the causal mask and the positions that its model would pass to it."""

    def __init__(
        self,
        weights: BaseWeights,
        name: str,
        index: int,
        rotary: str | None,
        *,
        recomputes: bool,
    ) -> None:
        super().__init__(weights, name)
        self._config = weights.model.config
        self._has_window = _has_window(self._config, index)
        # In a tuple, because its frequencies must stay in fp32 when parameters become bf16.
        self._rotary: tuple[Any, ...] = ()
        if rotary is not None:
            self._rotary = (type(weights.model.get_submodule(rotary))(config=self._config),)
        self._recomputes = recomputes

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the layer's hidden states."""
        from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        make_mask = create_sliding_window_causal_mask if self._has_window else create_causal_mask
        mask = make_mask(
            config=self._config,
            inputs_embeds=hidden,
            attention_mask=None,
            past_key_values=None,
            position_ids=positions,
        )
        inputs = {"attention_mask": mask, "position_ids": positions, "use_cache": False}
        for rotary in self._rotary:
            inputs["position_embeddings"] = rotary(hidden, positions)
        compute = partial(self.inner, **inputs)
        if self._recomputes and torch.is_grad_enabled():
            output: torch.Tensor = checkpoint(compute, hidden, use_reentrant=False)
        else:
            output = compute(hidden)
        return output


def project(embedding: Layer, hidden: torch.Tensor) -> torch.Tensor:
    """Compute logits with the embedding of tokens, to which the head is tied."""
    return torch.nn.functional.linear(hidden, embedding.inner.weight)


def _has_window(config: Any, index: int) -> bool:
    """Return whether a layer attends only to the last tokens."""
    if types := getattr(config, "layer_types", None):
        return bool(types[index] == "sliding_attention")
    return getattr(config, "sliding_window", None) is not None
