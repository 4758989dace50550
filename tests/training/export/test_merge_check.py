"""Every tensor of a merged model is compared with what base and adapter make of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraModel
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM

from tests.peft_adapters import write_adapter
from tests.tiny_model import build_tiny_model
from training.export.merge import merge_adapter
from training.export.plan import ConsolidationError
from training.export.verification import RejectedError

VOCABULARY_SIZE = 384
REJECTED = "^the merged model is not correct: "


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("base") / "base", dtype=torch.bfloat16)


def copy_tokenizer(base: Path, directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, directory)


def scale(adapter: Path, part: str, factor: float) -> None:
    """Multiply the tensors of an adapter whose names contain a text."""
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file(
        {name: one * factor if part in name else one for name, one in tensors.items()},
        file,
        metadata={"format": "pt"},
    )


def change_settings(adapter: Path, **changes: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}},
        {"use_dora": True, "target_modules": "all-linear"},
    ],
)
def test_correct_merge_passes(settings: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    base = build_tiny_model(tmp_path / "base", dtype=dtype)
    adapter = write_adapter(base, tmp_path / "adapter", **settings)
    verification = merge_adapter(adapter, base, tmp_path / "merged")
    details = {check.name: check.detail for check in verification.checks}
    assert " weights are those of the base plus the adapter" in details["merged"]


@pytest.mark.parametrize("factor", [1.0, 0.04])
def test_merge_that_adds_nothing_is_rejected(
    factor: float, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = write_adapter(base, tmp_path / "adapter")
    scale(adapter, "lora_B", factor)
    monkeypatch.setattr(LoraModel, "merge_and_unload", lambda model: model.unload())
    with pytest.raises(RejectedError, match=REJECTED) as caught:
        merge_adapter(adapter, base, tmp_path / "merged")
    assert "weights that are not those of the base plus the adapter: " in str(caught.value)


def test_change_of_another_weight_is_rejected(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = write_adapter(base, tmp_path / "adapter")
    real = LoraModel.merge_and_unload

    def merge(model: Any) -> Any:
        merged = real(model)
        merged.get_submodule("model.layers.0.self_attn.k_proj").weight.data[0, 0] *= 1.01
        return merged

    monkeypatch.setattr(LoraModel, "merge_and_unload", merge)
    with pytest.raises(RejectedError, match=REJECTED) as caught:
        merge_adapter(adapter, base, tmp_path / "merged")
    other = "weights without an adapter that differ from the base: 'model.layers.0.self_attn.k_proj"
    assert other in str(caught.value)


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"use_dora": True}, {"use_dora": False}),
        ({}, {"use_dora": True}),
        ({}, {"target_modules": ["q_proj"]}),
    ],
)
def test_tensors_that_peft_ignores_or_adds_are_found(
    written: dict[str, Any], read: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(base, tmp_path / "adapter", **written)
    change_settings(adapter, **read)
    with pytest.raises(RejectedError, match=REJECTED) as caught:
        merge_adapter(adapter, base, tmp_path / "merged")
    assert "weights that are not those of the base plus the adapter: " in str(caught.value)


def build_gpt2(base: Path, directory: Path) -> Path:
    """Write a GPT-2 whose files, as in its first release, lack the prefix of the weights."""
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 128}
    config = GPT2Config(vocab_size=VOCABULARY_SIZE, eos_token_id=1, bos_token_id=None, **sizes)
    GPT2LMHeadModel(config).save_pretrained(directory)
    file = directory / "model.safetensors"
    tensors = {name.removeprefix("transformer."): one for name, one in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    copy_tokenizer(base, directory)
    return directory


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to")
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("use_dora", [True, False])
def test_transposed_layers_and_files_without_a_prefix_are_compared(
    use_dora: bool, is_named: bool, base: Path, tmp_path: Path
) -> None:
    model = build_gpt2(base, tmp_path / "gpt2")
    adapter = write_adapter(
        model,
        tmp_path / "adapter",
        target_modules=["c_attn", "c_proj"],
        fan_in_fan_out=True,
        use_dora=use_dora,
    )
    if not is_named:  # PEFT finds that itself
        change_settings(adapter, fan_in_fan_out=False)
    verification = merge_adapter(adapter, model, tmp_path / "merged")
    details = {check.name: check.detail for check in verification.checks}
    assert details["merged"].startswith("3 weights are those of the base plus the adapter")


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
def test_tensors_for_layers_that_the_base_lacks_are_refused(base: Path, tmp_path: Path) -> None:
    model = build_gpt2(base, tmp_path / "gpt2")
    adapter = write_adapter(
        model, tmp_path / "adapter", target_modules=["c_attn"], fan_in_fan_out=True
    )
    file = adapter / "adapter_model.safetensors"
    tensors = {
        name.replace(".transformer.", ".model."): one for name, one in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})
    message = r"^adapter 'adapter' has the tensors 'model\.h\.0\.attn\.c_attn\.lora_A'"
    with pytest.raises(ConsolidationError, match=message):
        merge_adapter(adapter, model, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_base_whose_files_have_other_names_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(base, tmp_path / "adapter")
    other = build_tiny_model(tmp_path / "other", dtype=torch.bfloat16)
    file = other / "model.safetensors"
    tensors = load_file(file)
    name = next(one for one in tensors if "k_proj" in one)
    save_file(
        {one: tensors[one] for one in tensors if one != name}, file, metadata={"format": "pt"}
    )
    with pytest.raises(ConsolidationError, match="^the files of base model 'other' do not have "):
        merge_adapter(adapter, other, tmp_path / "merged")


@pytest.mark.filterwarnings("ignore:The following rank_pattern keys")
@pytest.mark.filterwarnings("ignore:The following alpha_pattern keys")
def test_experts_that_memory_has_in_one_tensor_are_compared_by_their_files(
    base: Path, tmp_path: Path
) -> None:
    model = tmp_path / "mixtral"
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_local_experts": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    config = MixtralConfig(vocab_size=VOCABULARY_SIZE, **sizes, **heads)
    MixtralForCausalLM(config).save_pretrained(model)
    copy_tokenizer(base, model)
    tensors: dict[str, torch.Tensor] = {}
    experts = "model.layers.0.block_sparse_moe.experts"
    for name, (rows, columns) in {"w1": (24, 16), "w3": (24, 16), "w2": (16, 24)}.items():
        for expert in (0, 1):
            layer = f"base_model.model.{experts}.{expert}.{name}"
            tensors[f"{layer}.lora_A.weight"] = torch.randn(4, columns)
            tensors[f"{layer}.lora_B.weight"] = torch.randn(rows, 4)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8}
    names = {"target_modules": ["w1", "w2", "w3"], "base_model_name_or_path": "base"}
    (adapter / "adapter_config.json").write_text(json.dumps({**settings, **names}))
    verification = merge_adapter(adapter, model, tmp_path / "merged")
    details = {check.name: check.detail for check in verification.checks}
    assert details["merged"].startswith("6 weights are those of the base plus the adapter")
