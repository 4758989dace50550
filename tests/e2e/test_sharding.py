"""The memory of each worker under ZeRO-3, measured on the allocated tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.e2e.training_group import Case, measure_memory_in_group, write_table
from tests.tiny_model import build_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.computes, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 20 million parameters, so large that its shards outweigh constant overhead."""
    folder = tmp_path_factory.mktemp("sharding")
    tokenizer = AutoTokenizer.from_pretrained(build_tiny_model(folder / "source"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "tiny")
    tokenizer.save_pretrained(folder / "tiny")
    write_table(folder / "rows.arrow")
    return folder


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_of_two_workers_stores_half_of_state(folder: Path, precision: str) -> None:
    settings: dict[str, Any] = {"precision": precision}
    alone = measure_memory_in_group(1, folder, Case(settings, num_shares=1, last=2))
    shared = measure_memory_in_group(2, folder, Case(settings, num_shares=2, last=2))
    share = shared / alone
    print(
        f"{precision}: {alone / 1e6:.1f} MB alone, {shared / 1e6:.1f} MB each of two: {share:.3f}"
    )
    num_parameters = sum(
        p.numel() for p in LlamaForCausalLM.from_pretrained(folder / "tiny").parameters()
    )
    assert alone > num_parameters * (torch.float32.itemsize * 3), "weights and two moments in fp32"
    assert share <= 0.55
