"""A merge needs the base in fp32 and some more, and has time in proportion."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from training.preflight import merge_needs
from training.preflight.merge_needs import estimate_merge_memory, find_merge_timeout


def test_memory_is_four_bytes_a_parameter_and_copies_of_the_largest_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_needs, "_PROCESS_BYTES", 0)
    half = torch.bfloat16
    base = {
        "model.embed.weight": torch.zeros(30, 10, dtype=half),
        "model.layers.0.mlp.experts.0.w1.weight": torch.zeros(20, 10, dtype=half),
        "model.layers.0.mlp.experts.1.w1.weight": torch.zeros(20, 10, dtype=half),
        "model.layers.1.mlp.experts.1.w1.weight": torch.zeros(20, 10, dtype=half),
    }
    save_file(base, tmp_path / "model.safetensors")
    save_file({"a": torch.zeros(5, dtype=half)}, tmp_path / "adapter_model.safetensors")
    parameters, experts_of_a_layer, learned = 900, 400, 5
    expected = 4 * (parameters + 3 * experts_of_a_layer + 3 * learned)
    assert estimate_merge_memory(tmp_path, tmp_path) == expected


def test_larger_models_have_more_time() -> None:
    assert find_merge_timeout(0) == 1800
    assert find_merge_timeout(30 * 10**9) == 1800 + 6000
