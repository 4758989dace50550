"""Consolidation of every kind of architecture restores the trained tensors under their names."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from storage.manifest import verify_directory
from tests.e2e.export_group import LEAK_NAME, VOCABULARY, ExportCase, save_in_group
from tests.tiny_model import build_tiny_model
from training.checkpoint.format import TAG, find_shards
from training.checkpoint.reference_logits import PROBE_NAME, read_probe
from training.checkpoint.restore import convert_to_universal
from training.export.consolidate import consolidate_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.computes]

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GATED: dict[str, Any] = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2}
EXPERTS: dict[str, Any] = {**GATED, "num_experts_per_tok": 2}
GPT2_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# 33 and 35 are not divisible by two: the last slice of many parameters is padded.
ODD: dict[str, Any] = {**GATED, "vocab_size": VOCABULARY + 1, "intermediate_size": 35}


@dataclass(frozen=True)
class Architecture:
    config: PreTrainedConfig
    frozen: tuple[str, ...] = ()


ARCHITECTURES = {
    "gpt2": Architecture(GPT2Config(**GPT2_SIZES)),
    "llama-tied": Architecture(LlamaConfig(**ODD, tie_word_embeddings=True)),
    "llama-untied": Architecture(LlamaConfig(**ODD, tie_word_embeddings=False)),
    "llama-frozen": Architecture(
        LlamaConfig(**ODD, tie_word_embeddings=True), ("model.embed_tokens", "model.layers.0")
    ),
    "qwen2": Architecture(Qwen2Config(**GATED, tie_word_embeddings=True)),
    "qwen3": Architecture(Qwen3Config(**GATED, head_dim=8, tie_word_embeddings=True)),
    "gemma2": Architecture(Gemma2Config(**GATED, head_dim=8)),
    "phi": Architecture(PhiConfig(**{**SIZES, "intermediate_size": 48})),
    "phi3": Architecture(Phi3Config(**GATED)),
    "mistral": Architecture(MistralConfig(**GATED)),
    "opt": Architecture(OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32)),
    "gpt-neox": Architecture(GPTNeoXConfig(**SIZES, intermediate_size=48)),
    "mixtral": Architecture(MixtralConfig(**EXPERTS, num_local_experts=4)),
    "qwen3-moe": Architecture(
        Qwen3MoeConfig(**EXPERTS, head_dim=8, num_experts=4, moe_intermediate_size=24)
    ),
}


# OPT computes its positions itself, across the rows of a flattened batch.
LEAKING = {"opt"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each architecture, with random weights and a tokenizer."""
    folder = tmp_path_factory.mktemp("architectures")
    tokenizer = AutoTokenizer.from_pretrained(build_tiny_model(folder / "tokenizer"))
    torch.manual_seed(0)
    for name, architecture in ARCHITECTURES.items():
        AutoModelForCausalLM.from_config(architecture.config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def read_layout(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of all tensors in a directory's files."""
    layout: dict[str, tuple[int, ...]] = {}
    for file in directory.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            layout |= {
                name: tuple(tensors.get_slice(name).get_shape())
                for name in tensors.keys()  # noqa: SIM118 - not a dictionary
            }
    return layout


@pytest.mark.long
@pytest.mark.parametrize("world_size", [1, 2])
def test_consolidated_model_equals_trained_model(
    folder: Path, tmp_path: Path, world_size: int
) -> None:
    cases = {
        (name, stage): ExportCase(
            folder / name,
            tmp_path / f"{name}-{stage}",
            {"zero_stage": stage},
            ARCHITECTURES[name].frozen,
        )
        for name in ARCHITECTURES
        for stage in (0, 2, 3)
    }
    save_in_group(world_size, folder, list(cases.values()))
    worst = 0.0
    for (name, _), case in cases.items():
        leak = (case.checkpoint / LEAK_NAME).read_text()
        assert bool(leak) == (name in LEAKING), (name, leak)
    for (name, stage), case in cases.items():
        output = tmp_path / f"{name}-{stage}-model"
        verification = consolidate_checkpoint(
            case.checkpoint, str(case.model), output, dtype=torch.float32, shard_bytes=20_000
        )
        assert [check.passed for check in verification.checks] == [True] * 4
        assert read_layout(output) == read_layout(folder / name), (name, stage)
        verify_directory(output)
        probe = read_probe(case.checkpoint)
        assert probe is not None
        with torch.no_grad():
            found = AutoModelForCausalLM.from_pretrained(output)(**probe.inputs).logits[0]
            before = AutoModelForCausalLM.from_pretrained(case.model)(**probe.inputs).logits[0]
        difference = float((found - probe.logits).norm() / probe.logits.norm())
        moved = float((before - probe.logits).norm() / probe.logits.norm())
        print(
            f"{world_size} workers, stage {stage}, {name}: {difference:.1e} (trained: {moved:.1e})"
        )
        assert difference < 1e-5, (name, stage)
        assert moved > 100 * difference, "the step changed the logits by more than rounding"
        worst = max(worst, difference)
    print(f"{world_size} workers, largest difference of the logits: {worst:.1e}")


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("name", ["llama-tied", "llama-frozen", "mixtral"])
def test_universal_checkpoint_is_consolidated(
    folder: Path, tmp_path: Path, name: str, stage: int
) -> None:
    case = ExportCase(
        folder / name, tmp_path / "checkpoint", {"zero_stage": stage}, ARCHITECTURES[name].frozen
    )
    save_in_group(2, folder, [case])
    universal = tmp_path / "universal"
    convert_to_universal(find_shards(case.checkpoint), universal / TAG)
    shutil.copy(case.checkpoint / PROBE_NAME, universal)
    verification = consolidate_checkpoint(
        universal, str(case.model), tmp_path / "model", dtype=torch.float32
    )
    assert [check.passed for check in verification.checks] == [True] * 4
    assert read_layout(tmp_path / "model") == read_layout(case.model)
