"""Packed layers compute the results of the layers that they replace."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from serving.cpu.packed_linear import PackedLinear, pack_linear_layers
from serving.loading.inspection import inspect_model
from serving.loading.loading import load_model
from serving.loading.memory import PROCESS_BYTES, estimate_memory
from serving.settings import EngineSettings
from tests.tiny_model import build_tiny_model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_packed_layer_computes_output_of_linear_layer(
    dtype: torch.dtype, tolerance: float, bias: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 96, bias=bias), nn.ReLU(), nn.Linear(96, 7, bias=bias))
    model.to(dtype).requires_grad_(False)
    inputs = torch.randn(2, 5, 48, dtype=dtype)
    expected = model(inputs)
    pack_linear_layers(model)
    # oneDNN computes in bf16 only on processors with instructions for it
    packable = dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    linear = PackedLinear if packable else nn.Linear
    assert [type(layer) for layer in model] == [linear, nn.ReLU, linear]
    outputs = model(inputs)
    assert outputs.shape == (2, 5, 7)
    assert outputs.dtype == dtype
    torch.testing.assert_close(outputs, expected, rtol=0, atol=tolerance)


def test_packing_frees_original_weight() -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    weight = weakref.ref(model[0].weight)
    pack_linear_layers(model)
    assert weight() is None


def test_subclasses_and_other_dtypes_are_not_packed() -> None:
    class Scaled(nn.Linear):
        pass

    model = nn.Sequential(Scaled(4, 4), nn.Linear(4, 4, dtype=torch.float64))
    pack_linear_layers(model)
    assert [type(layer) for layer in model] == [Scaled, nn.Linear]


def test_packed_copy_of_tied_head_is_computed_and_counted(tiny_model: Path) -> None:
    model: Any = load_model(tiny_model)[0]
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected = model(ids).logits
        assert model.lm_head.weight is model.model.embed_tokens.weight
        pack_linear_layers(model)
        assert type(model.lm_head) is PackedLinear
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-4)
    embedding = model.model.embed_tokens.weight
    weights = sum(file.stat().st_size for file in tiny_model.glob("*.safetensors"))
    estimated = estimate_memory(inspect_model(tiny_model), EngineSettings(num_cache_blocks=1))
    estimated -= PROCESS_BYTES
    assert estimated > weights + embedding.nbytes


def test_packed_bf16_model_computes_similar_logits(tmp_path: Path) -> None:
    path = build_tiny_model(tmp_path / "model", dtype=torch.bfloat16)
    model: Any = load_model(path)[0]
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        expected = model(ids).logits
        pack_linear_layers(model)
        # bf16 has eight significant bits, and logits are in the dozens
        torch.testing.assert_close(model(ids).logits, expected, rtol=0.05, atol=0.5)
