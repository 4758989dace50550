"""Layers that exist in the files of a base model, and not, or differently, in memory."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, MixtralConfig

from serving.loading.adapted_layers import check_adapted_layers


def build(directory: Path, config: GPT2Config | MixtralConfig) -> Path:
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


def test_prefix_must_be_that_of_the_model(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=40, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    base = build(tmp_path / "gpt2", config)
    tensors = load_file(base / "model.safetensors")
    plain = {name.removeprefix("transformer."): one for name, one in tensors.items()}
    save_file(plain, base / "model.safetensors", metadata={"format": "pt"})
    check_adapted_layers(base, ["transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_fc"])
    with pytest.raises(
        ValueError, match=r"^the adapter changes 'model\.h\.0\.attn\.c_attn', which"
    ):
        check_adapted_layers(base, ["model.h.0.attn.c_attn"])


def test_experts_and_other_layers_are_refused(tmp_path: Path) -> None:
    config = MixtralConfig(
        vocab_size=40,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    base = build(tmp_path / "mixtral", config)
    check_adapted_layers(base, ["model.layers.0.self_attn.q_proj"])
    for name in (
        "model.layers.0.block_sparse_moe.experts.0.w1",
        "model.layers.0.mlp.experts.0.gate_proj",
        "model.layers.0.input_layernorm",
    ):
        with pytest.raises(ValueError, match=f"^the adapter changes '{name}', which are no linear"):
            check_adapted_layers(base, [name])
