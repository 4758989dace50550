"""The memory of models, estimated from their files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from serving.loading import memory
from serving.loading.inspection import inspect_model
from serving.loading.loading import load_tokenizer
from serving.loading.memory import (
    PROCESS_BYTES,
    estimate_adapter_memory,
    estimate_memory,
    find_default_budget,
)
from serving.settings import EngineSettings
from tests.peft_adapters import write_adapter
from tests.tiny_model import build_tiny_model

SETTINGS = EngineSettings(num_cache_blocks=1)


def test_weights_are_counted_in_loaded_dtype(tmp_path: Path) -> None:
    wide = build_tiny_model(tmp_path / "wide")
    narrow = build_tiny_model(tmp_path / "narrow")
    AutoModelForCausalLM.from_pretrained(narrow, dtype=torch.bfloat16).save_pretrained(narrow)
    config = (wide / "config.json").read_text()  # with dtype fp32
    (narrow / "config.json").write_text(config)
    narrow_bytes, wide_bytes = (
        estimate_memory(inspect_model(path), SETTINGS) - PROCESS_BYTES for path in (narrow, wide)
    )
    assert narrow_bytes == pytest.approx(wide_bytes, rel=0.02)


def test_replicas_of_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_default_budget(4) == pytest.approx(find_default_budget() / 4, rel=0.2)


def test_gpu_memory_is_read_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(memory, "GPU_QUERY", "print(1000)")
    assert find_default_budget() == 850


def test_only_tied_head_is_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = inspect_model(build_tiny_model(tmp_path / "model"))
    config = AutoConfig.from_pretrained(tmp_path / "model")
    assert found.tied_head_bytes == config.vocab_size * config.hidden_size * 4
    untied = found.model_copy(update={"tied_head_bytes": 0})
    difference = estimate_memory(found, SETTINGS) - estimate_memory(untied, SETTINGS)
    assert difference == found.tied_head_bytes


def test_tokenizer_is_counted_for_both_processes(tmp_path: Path) -> None:
    found = inspect_model(build_tiny_model(tmp_path / "model"))
    with_tokenizer = found.model_copy(update={"tokenizer_bytes": 1_000_000})
    difference = estimate_memory(with_tokenizer, SETTINGS) - estimate_memory(found, SETTINGS)
    assert difference == 2_000_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_factors_of_an_adapter_count_twice_in_the_dtype_of_its_base(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    base = build_tiny_model(tmp_path / "base", dtype=dtype)
    adapter = write_adapter(base, tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    factors = load_file(file)
    num_elements = sum(factor.numel() for factor in factors.values())
    for of_file in (torch.float32, torch.bfloat16):
        save_file({name: one.to(of_file) for name, one in factors.items()}, file)
        assert estimate_adapter_memory(adapter, base) == 2 * num_elements * dtype.itemsize


def test_tokenizer_of_an_adapter_counts_unless_it_is_that_of_its_base(tmp_path: Path) -> None:
    base = build_tiny_model(tmp_path / "base")
    adapter = write_adapter(base, tmp_path / "adapter")
    bare = estimate_adapter_memory(adapter, base)
    load_tokenizer(base).save_pretrained(adapter)
    assert estimate_adapter_memory(adapter, base) == bare
    (adapter / "tokenizer_config.json").write_text('{"eos_token": "e"}')
    added = estimate_adapter_memory(adapter, base) - bare
    assert added >= 20 * (adapter / "tokenizer.json").stat().st_size
