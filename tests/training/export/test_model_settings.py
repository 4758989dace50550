import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from tests.tiny_model import build_tiny_model
from tests.written_checkpoint import write_whole
from training.base_model import load_config
from training.export.consolidate import consolidate_checkpoint
from training.export.model_settings import check_settings, remove_stale_settings
from training.export.verification import RejectedError

STALE = {
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    "auto_map": {"AutoConfig": "configuration_own.OwnConfig"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def changed(model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model, tmp_path / "changed")


def change(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_stale_settings_of_base_model_are_not_exported(
    model: Path, changed: Path, tmp_path: Path
) -> None:
    change(changed / "config.json", **STALE)
    change(changed / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]})
    checkpoint = write_whole(tmp_path / "c", AutoModelForCausalLM.from_pretrained(model))
    output = tmp_path / "out"
    consolidate_checkpoint(checkpoint, str(changed), output, dtype=torch.float32)
    for name in ("config.json", "tokenizer_config.json"):
        assert STALE.keys().isdisjoint(json.loads((output / name).read_text()))
    assert check_settings(output).passed


def test_stale_settings_of_nested_config_are_removed(model: Path) -> None:
    config, part = load_config(str(model)), load_config(str(model))
    part.quantization_config = STALE["quantization_config"]
    config.text_config = part
    remove_stale_settings(config)
    assert not hasattr(config.text_config, "quantization_config")


def test_complete_model_passes_check(model: Path) -> None:
    assert check_settings(model).passed


@pytest.mark.parametrize(
    ("file", "settings", "fault"),
    [
        ("config.json", {"auto_map": {"AutoConfig": "own.Own"}}, "code of the model's own"),
        ("config.json", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("config.json", {"dtype": "bfloat16"}, r"dtype torch.bfloat16, the weights float32"),
        ("generation_config.json", {"eos_token_id": [3, 9999]}, r"ends at the tokens \[9999\]"),
        ("tokenizer_config.json", {"vocab_file": "other.txt"}, "'vocab_file' is 'other.txt'"),
    ],
)
def test_settings_that_do_not_match_weights_are_named(
    changed: Path, file: str, settings: dict[str, Any], fault: str
) -> None:
    change(changed / file, **settings)
    check = check_settings(changed)
    assert check.passed is False
    assert fault.replace("\\", "") in check.detail


def test_model_with_invalid_settings_is_rejected(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = GenerationConfig(eos_token_id=9999)
    monkeypatch.setattr("training.export.companions.load_generation_config", lambda _: odd)
    checkpoint = write_whole(tmp_path / "c", AutoModelForCausalLM.from_pretrained(model))
    with pytest.raises(
        RejectedError,
        match=r"^the consolidated model is not what was trained: generation_config\.json ends at "
        r"the tokens \[.*9999\]",
    ):
        consolidate_checkpoint(checkpoint, str(model), tmp_path / "out", dtype=torch.float32)
