import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from model_files.weight_headers import ADAPTER_CONFIG_NAME, ADAPTER_WEIGHTS_NAME
from serving.store.adapter_validation import (
    check_adapter_directory,
    clean_adapter_settings,
    holds_adapter,
    read_layer_shapes,
)
from tests.peft_adapters import load_with_peft, write_adapter

_QUERY = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def written(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tiny_model, tmp_path_factory.mktemp("adapter") / "adapter")


@pytest.fixture
def adapter(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "adapter"))


def _set(**changes: Any) -> Callable[[Path], None]:
    def change(adapter: Path) -> None:
        path = adapter / ADAPTER_CONFIG_NAME
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _change_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(adapter: Path) -> None:
        tensors = load_file(adapter / ADAPTER_WEIGHTS_NAME)
        change(tensors)
        save_file(tensors, adapter / ADAPTER_WEIGHTS_NAME)

    return apply


def _rename(old: str, new: str) -> Callable[[Path], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace(old, new)] = tensors.pop(name)

    return _change_tensors(change)


def _narrow(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{_QUERY}.lora_A.weight"] = torch.ones(4, 31)


def _widen(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{_QUERY}.lora_A.weight"] = torch.ones(65, 32)
    tensors[f"{_QUERY}.lora_B.weight"] = torch.ones(32, 65)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dora": True},
        {"use_rslora": True, "lora_alpha": 3},
        {"task_type": None},
        {"rank_pattern": {"layers.1.self_attn.q_proj": 2}, "alpha_pattern": {"v_proj": 3}},
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.(q|v)_proj", "layers_to_transform": None},
        {"layers_to_transform": [1]},
    ],
    ids=str,
)
def test_adapters_of_peft_are_accepted_and_cleaned_to_the_same_function(
    tiny_model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    adapter = write_adapter(tiny_model, tmp_path / "adapter", **settings)
    check_adapter_directory(adapter, tiny_model)
    ids = torch.arange(8)[None]
    before = load_with_peft(tiny_model, adapter)(ids).logits
    base = tmp_path / "base"
    base.symlink_to(tiny_model)
    clean_adapter_settings(adapter, base)
    check_adapter_directory(adapter, tiny_model)
    kept = json.loads((adapter / ADAPTER_CONFIG_NAME).read_text())
    assert kept["base_model_name_or_path"] == "base"
    assert isinstance(kept["target_modules"], list)
    assert not kept.keys() & {"auto_mapping", "layers_to_transform", "peft_version"}
    assert torch.equal(load_with_peft(tiny_model, adapter)(ids).logits, before)


def test_settings_for_layers_without_tensors_are_removed(tiny_model: Path, adapter: Path) -> None:
    """PEFT would create these layers, of any rank."""
    kept = json.loads((adapter / ADAPTER_CONFIG_NAME).read_text())["target_modules"]
    _set(
        r=200_000,
        target_modules=[*kept, "gate_proj"],
        rank_pattern=dict.fromkeys(kept, 4),
    )(adapter)
    check_adapter_directory(adapter, tiny_model)
    clean_adapter_settings(adapter, tiny_model)
    cleaned = json.loads((adapter / ADAPTER_CONFIG_NAME).read_text())
    assert cleaned["target_modules"] == sorted(kept)


def test_dora_needs_its_setting(tiny_model: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tiny_model, tmp_path / "adapter", use_dora=True)
    _set(use_dora=False)(adapter)
    with pytest.raises(ValueError, match="^the adapter has a lora_magnitude_vector for .* False; "):
        check_adapter_directory(adapter, tiny_model)


@pytest.mark.parametrize("has_prefix", [True, False])
def test_names_in_the_files_of_the_base_may_lack_its_prefix(
    tmp_path: Path, *, has_prefix: bool
) -> None:
    base = tmp_path / "gpt2"
    config = GPT2Config(vocab_size=40, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    model = GPT2LMHeadModel(config)
    model.save_pretrained(base)
    if not has_prefix:
        tensors = load_file(base / "model.safetensors")
        plain = {name.removeprefix("transformer."): one for name, one in tensors.items()}
        save_file(plain, base / "model.safetensors", metadata={"format": "pt"})
    adapter = write_adapter(
        base, tmp_path / "adapter", target_modules=["c_attn"], fan_in_fan_out=True
    )
    check_adapter_directory(adapter, base)
    _set(fan_in_fan_out=False)(adapter)
    with pytest.raises(ValueError, match=r"^the adapter's tensors for 'transformer\.h\.0"):
        check_adapter_directory(adapter, base)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (
            _set(peft_type="IA3"),
            "adapter_config.json: 'peft_type' is 'IA3', expected 'LORA': merge",
        ),
        (_set(task_type="SEQ_CLS"), "adapter_config.json: 'task_type' is 'SEQ_CLS', expected"),
        (_set(bias="all"), "adapter_config.json: 'bias' is 'all', expected 'none'"),
        (_set(modules_to_save=["lm_head"]), "adapter_config.json: 'modules_to_save' is"),
        (_set(trainable_token_indices=[1]), "adapter_config.json: 'trainable_token_indices' is"),
        (_set(layer_replication=[[0, 1]]), "adapter_config.json: 'layer_replication' is"),
        (_set(eva_config={"rho": 2.0}), "adapter_config.json: 'eva_config' is"),
        (_set(corda_config={"cache_file": "/x"}), "adapter_config.json: 'corda_config' is"),
        (_set(loftq_config={"loftq_bits": 4}), "adapter_config.json: 'loftq_config' is"),
        (_set(custom_code="x.py"), "adapter_config.json: 'custom_code' is 'x.py', which is not"),
        (_set(auto_map={"A": "b.py"}), "adapter_config.json: 'auto_map' is"),
        (_set(init_lora_weights="pissa"), "adapter_config.json: 'init_lora_weights' is 'pissa'"),
        (_set(lora_bias=True), "adapter_config.json: 'lora_bias' is 'True'"),
        (_set(use_dora="yes"), "adapter_config.json: 'use_dora' is 'yes', expected True or False"),
        (_set(r=0), "adapter_config.json: 'r' is 0, expected a positive integer"),
        (_set(r=True), "adapter_config.json: 'r' is True, expected a positive integer"),
        (_set(r=8), "the adapter's tensors for .* expected .* for rank 8 and base model"),
        (_set(lora_alpha=None), "adapter_config.json: 'lora_alpha' is None, expected a positive"),
        (_set(lora_alpha=1e300), "adapter_config.json: 'lora_alpha' is 1e.300, expected a positiv"),
        (
            _set(lora_alpha=10**400),
            "adapter_config.json: 'lora_alpha' is 100.*0, expected a positi",
        ),
        (_set(lora_dropout="x"), "adapter_config.json: 'lora_dropout' is 'x', expected a number"),
        (_set(target_modules=[["q_proj"]]), "adapter_config.json: 'target_modules' is .*, expecte"),
        (
            _set(target_modules=["q_proj"]),
            r"the adapter has tensors for .*down_proj.*, which 'target_modules' .* \['q_proj'\]; ",
        ),
        (_set(use_dora=True), "the adapter has no lora_magnitude_vector for .* 'use_dora' .* True"),
        (_set(alpha_pattern={"q": 0}), r"adapter_config.json: 'alpha_pattern\.q' is 0, expected"),
        (_set(rank_pattern={"(a+)+b": 2}), r"adapter_config.json: 'rank_pattern' has the pattern"),
        (
            _set(rank_pattern={"q": "2"}),
            "adapter_config.json: rank_pattern of 'q' is '2', expected",
        ),
        (_set(rank_pattern=[1]), r"adapter_config.json: 'rank_pattern' is '\[1\]', expected an ob"),
        (
            lambda path: (path / ADAPTER_CONFIG_NAME).write_text("[]"),
            "adapter_config.json holds a list; expected an object",
        ),
        (
            lambda path: (path / ADAPTER_CONFIG_NAME).write_text(" " * (17 << 20)),
            "adapter_config.json has 17,825,792 bytes; expected at most",
        ),
        (
            lambda path: (path / ADAPTER_WEIGHTS_NAME).unlink(),
            "'adapter' has adapter_config.json and no adapter_model.safetensors",
        ),
        (lambda path: (path / "adapter_model.bin").touch(), "adapter_model.bin may hold pickled"),
        (lambda path: (path / "x").symlink_to("../y"), "x is a link that leaves the directory"),
        (
            lambda path: shutil.copy(path / ADAPTER_WEIGHTS_NAME, path / "model.safetensors"),
            "model.safetensors is beside adapter_model.safetensors",
        ),
        (
            lambda path: (path / ADAPTER_WEIGHTS_NAME).write_bytes(b"\xff" * 100),
            "adapter_model.safetensors is no whole safetensors file: it has 100 bytes",
        ),
        (lambda path: (path / "config.json").write_text("{}"), "'adapter' has adapter_config.json"),
        (
            lambda path: (path / "verification.json").write_text('{"passed": false}'),
            "'adapter' failed its verification",
        ),
        (
            lambda path: (path / "tokenizer_config.json").write_text('{"auto_map": {}}'),
            "tokenizer_config.json asks for code",
        ),
        (
            _rename("self_attn", "attention"),
            r"the adapter has tensors for 'model\.layers\.0\.attention\.q_proj', .* match no layer",
        ),
        (
            _rename("model.layers.0.mlp.down_proj", "lm_head"),
            "the adapter changes 'lm_head', the head or an embedding of base model",
        ),
        (
            _rename("model.layers.0.mlp.down_proj", "model.embed_tokens"),
            "the adapter changes 'model.embed_tokens', the head or an embedding",
        ),
        (
            _rename("lora_A.weight", "lora_embedding_A"),
            "adapter_model.safetensors has the tensor '.*lora_embedding_A', expected only names",
        ),
        (
            _rename("model.layers.0.self_attn.q_proj", "model.layers.0.input_layernorm"),
            r"layer 'model\.layers\.0\.input_layernorm' of base model .* shape \[32\], which is no",
        ),
        (
            _change_tensors(lambda tensors: tensors.pop(f"{_QUERY}.lora_B.weight")),
            "adapter_model.safetensors has for layer .*q_proj' only lora_A, expected lora_A and",
        ),
        (_change_tensors(dict.clear), "adapter_model.safetensors has no tensors"),
        (
            _change_tensors(
                lambda tensors: tensors.update(
                    {f"{_QUERY}.lora_A.weight": torch.ones(4, 32, dtype=torch.int64)}
                )
            ),
            "tensor '.*lora_A.weight' of adapter_model.safetensors has dtype I64, expected one of",
        ),
        (
            _change_tensors(
                lambda tensors: tensors.update(
                    {
                        f"{_QUERY}.lora_magnitude_vector": torch.ones(32),
                        f"{_QUERY}.lora_magnitude_vector.weight": torch.ones(32),
                    }
                )
            ),
            "adapter_model.safetensors has two tensors 'lora_magnitude_vector' of layer",
        ),
        (
            _change_tensors(
                lambda tensors: tensors.update({f"{_QUERY}.lora_magnitude_vector": torch.ones(31)})
            ),
            r"the adapter's tensors for .* have shapes .*, \[31\], expected .*, \[32\] for rank 4",
        ),
        (
            _change_tensors(_narrow),
            r"the adapter's tensors for .* have shapes \[4, 31\], \[32, 4\], expected \[4, 32\]",
        ),
        (
            lambda path: (
                _change_tensors(_widen)(path),
                _set(rank_pattern={"layers.0.self_attn.q_proj": 65})(path),
            ),
            "the adapter's rank for .* is 65, larger than the layer: expected at most 64",
        ),
    ],
)
def test_unsafe_or_unfit_adapters_are_refused(
    adapter: Path, tiny_model: Path, corrupt: Callable[[Path], object], message: str
) -> None:
    check_adapter_directory(adapter, tiny_model)
    corrupt(adapter)
    with pytest.raises(ValueError, match=f"^{message}"):
        check_adapter_directory(adapter, tiny_model)


def test_base_of_another_task_is_refused(adapter: Path, tiny_model: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    config = json.loads((base / "config.json").read_text())
    config["architectures"] = ["LlamaForSequenceClassification"]
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="^the base model 'base' has the task 'sequence_classif"):
        check_adapter_directory(adapter, base)


def test_adapter_is_told_from_a_model(adapter: Path, tiny_model: Path) -> None:
    assert (holds_adapter(adapter), holds_adapter(tiny_model)) == (True, False)
    shapes = read_layer_shapes(adapter / ADAPTER_WEIGHTS_NAME)
    assert shapes["model.layers.1.self_attn.v_proj"] == ((4, 32), (16, 4), None)
