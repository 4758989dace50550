from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, Qwen2Config, Qwen3Config

from training.pipeline.architecture import find_family
from training.pipeline.layers import DecoderLayer, Layer
from training.pipeline.weights import BaseWeights
from training.spec import TrainingSpec

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
CONFIGS = [
    MistralConfig(**SIZES, sliding_window=4),
    Qwen2Config(**SIZES, **WINDOW),
    Qwen3Config(**SIZES, **WINDOW),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.model_type))
def test_layers_compute_what_their_model_does(tmp_path: Path, config: Any) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    values = {"base_model": str(tmp_path / "model"), "train_file": "f", "precision": "fp32"}
    weights = BaseWeights(TrainingSpec.model_validate(values))
    family = find_family(weights.model.config)
    layers = [
        Layer(weights, family.embedding),
        *(
            DecoderLayer(weights, f"{family.blocks}.{index}", index, family.rotary, recomputes=True)
            for index in range(config.num_hidden_layers)
        ),
        Layer(weights, family.norm),
        Layer(weights, "lm_head"),
    ]
    hidden = ids = torch.arange(24).reshape(2, 12) * 7 % 64
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for layer in layers:
        hidden = layer(hidden)
    assert torch.allclose(hidden, model(ids).logits, atol=1e-5)
