"""Rejections before any worker starts.

`tests/training/deepspeed/test_validation.py` tests the keys of DeepSpeed.
"""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from model_files.trainable import check_causal_task, check_unquantised
from storage import durable
from tests.tiny_model import build_tiny_model
from training.__main__ import main
from training.base_model import UnknownModelError
from training.preflight.adapter_check import count_learned_parameters
from training.preflight.preflight import (
    UnfitModelError,
    check_base_model,
    check_settings,
    count_parameters,
)
from training.preflight.requirements import ModelSize
from training.spec import SettingError, TrainingSpec
from training.task import find_task

CAUSAL = find_task("causal_lm")

LIMIT_S = 5.0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def model(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "model"))


def change_config(model: Path, **changes: Any) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(model: Path, **changes: Any) -> None:
    """Replace tensors of a model; None removes one."""
    tensors = {**load_file(model / "model.safetensors"), **changes}
    kept = {name: value for name, value in tensors.items() if value is not None}
    save_file(kept, model / "model.safetensors", metadata={"format": "pt"})


def test_suitable_base_model_is_accepted(model: Path) -> None:
    check_base_model(str(model), CAUSAL)
    assert count_parameters(str(model)) == sum(
        tensor.numel() for tensor in load_file(model / "model.safetensors").values()
    )
    durable.seal_directory(model)
    check_base_model(str(model), CAUSAL)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM, an enc"),
        ({"model_type": "roberta"}, "roberta, an encoder"),
        ({"model_type": "xlnet"}, "xlnet, an encoder"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "T5.*encoder-dec"),
        ({"model_type": "bart"}, "bart, an encoder-decoder"),
        ({"model_type": "vit"}, "vit .*no causal language model for"),
    ],
)
def test_model_of_another_task_is_rejected_by_name(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    """Previously, an encoder was trained on visible tokens; a worker rejected T5 after 57 s."""
    (tmp_path / "config.json").write_text(json.dumps(settings))
    name = tmp_path.name
    beginning = f"^base_model '{name}' cannot be fine-tuned: '{name}' has the architecture "
    with pytest.raises(UnfitModelError, match=f"{beginning}{message}"):
        check_base_model(str(tmp_path), CAUSAL)


@pytest.mark.parametrize(
    "model_type", ["llama", "gpt2", "qwen3", "gemma2", "mixtral", "opt", "modernbert-decoder"]
)
def test_causal_models_are_not_treated_as_encoders(model_type: str) -> None:
    check_causal_task(AutoConfig.for_model(model_type), "model")


def test_encoder_with_is_decoder_is_accepted() -> None:
    check_causal_task(AutoConfig.for_model("bert", is_decoder=True), "model")


def test_encoders_match_warnings_of_transformers() -> None:
    """transformers has no list of them; warnings in its sources name those with `is_decoder`."""
    import transformers.models as models

    folder = Path(models.__path__[0])
    sources = [
        path
        for path in folder.glob("*/modeling_*.py")
        if "as a standalone, add `is_decoder=True.`" in path.read_text()
    ]
    assert len(sources) > 10
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    folders = {path.parent.name for path in sources}
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() & CONFIG_MAPPING_NAMES.keys():
        if model_type.replace("-", "_").removesuffix("_text") in folders:
            with pytest.raises(ValueError, match="^'model' has the architecture .*, an encoder"):
                check_causal_task(AutoConfig.for_model(model_type), "model")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq, 4 bits"),
        ({"quant_method": "awq", "bits": 4}, "awq, 4 bits"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes, 4 bits"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes, 8 bits"),
    ],
)
def test_quantised_weights_are_rejected_by_method(
    model: Path, settings: dict[str, Any], words: str
) -> None:
    change_config(model, quantization_config=settings)
    with pytest.raises(
        UnfitModelError,
        match=r"^base_model 'model' cannot be fine-tuned: the weights of 'model' are quantised "
        rf"\({words}: 'quantization_config'",
    ):
        check_base_model(str(model), CAUSAL)
    check_unquantised(AutoConfig.for_model("llama"), "model")


def test_weights_that_do_not_match_architecture_are_named(model: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    beginning = "^the weights of base_model 'model' do not fit its architecture LlamaForCausalLM: "
    tensor = load_file(model / "model.safetensors")[name]
    change_weights(model, **{name: tensor[:-1].clone()})
    with pytest.raises(
        UnfitModelError,
        match=rf"{beginning}of another shape: '{name} is \[63, 32\], .*64, 32",
    ):
        check_base_model(str(model), CAUSAL)
    change_weights(model, **{name: None})
    with pytest.raises(UnfitModelError, match=f"{beginning}missing: '{name}'"):
        check_base_model(str(model), CAUSAL)
    change_weights(model, **{name: tensor, "score.weight": tensor.clone()})
    with pytest.raises(UnfitModelError, match=f"{beginning}not part of it: 'score.weight'"):
        check_base_model(str(model), CAUSAL)
    change_weights(model, **{"score.weight": None})
    check_base_model(str(model), CAUSAL)


def test_invalid_configuration_is_rejected(model: Path) -> None:
    change_config(model, num_key_value_heads=3)
    with pytest.raises((UnfitModelError, UnknownModelError)):
        check_base_model(str(model), CAUSAL)


def test_weights_in_another_format_are_rejected(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(
        UnfitModelError,
        match="^base_model 'model' cannot be fine-tuned: 'model' has no safetensors weights, only "
        "'pytorch_model.bin'",
    ):
        check_base_model(str(model), CAUSAL)


def test_model_with_adapter_is_rejected_on_disk_and_on_the_hub(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = model / "adapter_config.json"
    settings.write_text("{}")
    message = "^base_model '{}' cannot be fine-tuned: it has an adapter of PEFT"
    with pytest.raises(UnfitModelError, match=message.format("model")):
        check_base_model(str(model), CAUSAL)
    config = AutoConfig.from_pretrained(model)
    monkeypatch.setattr("training.preflight.preflight.load_config", lambda _: config)
    asked = []

    def download(name: str, file: str, **_options: Any) -> str:
        asked.append((name, file))
        return str(settings)

    monkeypatch.setattr("transformers.utils.peft_utils.cached_file", download)
    with pytest.raises(UnfitModelError, match=message.format("owner/model")):
        check_base_model("owner/model", CAUSAL)
    assert asked == [("owner/model", "adapter_config.json")]


def test_command_rejects_model_before_writing_files(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Previously, it was rejected after 57 s, and the output folder could not be reused."""
    change_config(model, quantization_config={"quant_method": "gptq", "bits": 4})
    (tmp_path / "rows.jsonl").write_text('{"text": "Twelve."}\n')
    (tmp_path / "spec.json").write_text('{"base_model": "model", "train_file": "rows.jsonl"}')
    started = time.monotonic()
    status = main([str(tmp_path / "spec.json"), "--output", str(tmp_path / "run")])
    assert status == 2
    assert time.monotonic() - started < LIMIT_S
    assert "gptq, 4 bits" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_size_of_model_is_known_once_settings_are_checked(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "tiny")
    values = {"base_model": str(model), "train_file": "r"}
    num_parameters = count_parameters(str(model))
    assert num_parameters is not None
    size = ModelSize(num_parameters, num_parameters)
    assert check_settings(TrainingSpec.model_validate(values)) == size
    spec = TrainingSpec.model_validate({**values, "adapter": {"rank": 2}})
    num_learned = count_learned_parameters(spec)
    assert num_learned is not None
    assert 0 < num_learned < num_parameters
    assert check_settings(spec) == ModelSize(num_parameters, num_learned)


def test_adapter_is_checked_before_weights_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_tiny_model(tmp_path / "tiny")
    monkeypatch.setattr("training.preflight.preflight._find_weights", lambda base_model: None)
    values = {"base_model": str(model), "train_file": "r"}
    assert check_settings(TrainingSpec.model_validate(values)) is None
    adapter = {"target_modules": ["nowhere"]}
    with pytest.raises(SettingError, match="^adapter.target_modules "):
        check_settings(TrainingSpec.model_validate({**values, "adapter": adapter}))
