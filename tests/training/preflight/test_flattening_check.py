from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from training.preflight.flattening_check import find_leak

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
STABLE: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {},
    "olmo2": {},
    "mixtral": {"num_local_experts": 4},
}
LEAKING: dict[str, dict[str, Any]] = {
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {"n_head": 4, "n_layer": 2},
    "mamba2": {"num_heads": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8},
    "lfm2": {"full_attn_idxs": [1], "layer_types": ["conv", "full_attention"]},
}


def build(kind: str, settings: dict[str, Any]) -> tuple[Any, Any]:
    config = AutoConfig.for_model(kind, **{**SMALL, **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return AutoModelForCausalLM.from_config(config).train(), config


@pytest.mark.parametrize("kind", STABLE)
def test_rows_of_most_architectures_are_independent(kind: str) -> None:
    model, config = build(kind, STABLE[kind])
    assert find_leak(model, config, torch.device("cpu")) is None
    assert model.training


@pytest.mark.parametrize("kind", LEAKING)
def test_dependent_rows_are_detected(kind: str) -> None:
    model, config = build(kind, LEAKING[kind])
    assert find_leak(model, config, torch.device("cpu")) is not None


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_rounding_error_is_not_a_leak(kind: str) -> None:
    model, config = build(kind, STABLE[kind])
    assert find_leak(model.to(torch.bfloat16), config, torch.device("cpu")) is None
