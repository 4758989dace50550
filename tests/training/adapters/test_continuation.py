"""Adapters that a training continues: their values, and which do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

from tests.peft_adapters import write_adapter
from tests.tiny_model import build_tiny_model
from training.adapters.layers import add_adapter
from training.preflight.adapter_check import plan_learned_tensors
from training.settings.adapter_settings import AdapterSettings
from training.settings.continued_adapter import continue_settings
from training.spec import SettingError, TrainingSpec

IDS = torch.arange(2, 20)[None]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def make_spec(base: Path, adapter: Path) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {
            "base_model": str(base),
            "train_file": "r",
            "base_adapter": str(adapter),
            "adapter": continue_settings(adapter, None),
        }
    )


def compute(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(IDS).logits
    return logits


@pytest.mark.parametrize("method", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_training_starts_from_the_logits_of_peft(
    tiny: Path, tmp_path: Path, method: dict[str, bool]
) -> None:
    folder = write_adapter(tiny, tmp_path / "adapter", **method)
    spec = make_spec(tiny, folder)
    planned = plan_learned_tensors(spec)
    assert planned is not None
    assert spec.adapter is not None
    plain, model = (AutoModelForCausalLM.from_pretrained(tiny) for _ in range(2))
    before = compute(plain)
    add_adapter(model, spec.adapter, has_new_head=False, seed=0, start=folder)
    expected = compute(PeftModel.from_pretrained(plain, str(folder)))
    assert torch.allclose(compute(model), expected, atol=1e-6)
    assert float((expected - before).abs().max()) > 0.1


def test_values_of_resumed_training_are_not_read(tiny: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    add_adapter(
        model,
        AdapterSettings(),
        has_new_head=False,
        seed=0,
        start=tmp_path / "deleted",
        is_resumed=True,
    )


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"rank_pattern": {"q_proj": 2}}, "its setting 'rank_pattern' is {'q_proj': 2}, expected"),
        ({"use_bias": "all"}, "its setting 'bias' is 'all', expected 'none'"),
        ({"starts_by": "pissa"}, "PEFT started it by 'pissa', which changes the base model"),
    ],
)
def test_adapter_that_would_be_computed_differently_is_refused(
    tiny: Path, tmp_path: Path, changes: dict[str, Any], refusal: str
) -> None:
    names = {"use_bias": "bias", "starts_by": "init_lora_weights"}
    folder = write_adapter(tiny, tmp_path / "adapter")
    file = folder / "adapter_config.json"
    settings = json.loads(file.read_text())
    settings.update({names.get(key, key): value for key, value in changes.items()})
    file.write_text(json.dumps(settings))
    with pytest.raises(
        SettingError, match=f"^base_adapter 'adapter' cannot be continued: {refusal}"
    ):
        plan_learned_tensors(make_spec(tiny, folder))


def test_adapter_of_another_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(tiny)
    config.intermediate_size *= 2
    other = tmp_path / "other"
    AutoModelForCausalLM.from_config(config).save_pretrained(other)
    folder = write_adapter(other, tmp_path / "adapter")
    refusal = (
        "^base_adapter 'adapter' does not fit the base model: of another shape: "
        "'base_model.model.model.layers.0.mlp.down_proj.lora_A"
    )
    with pytest.raises(SettingError, match=refusal):
        plan_learned_tensors(make_spec(tiny, folder))
