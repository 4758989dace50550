"""What is refused of quantised base weights, and how transformers is called for the rest.

Nothing is quantised here: bitsandbytes needs a GPU.
"""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from training.adapters.layers import add_adapter
from training.adapters.quantization import build_quantization
from training.export.adapter import select_comparable
from training.preflight import resources
from training.preflight.requirements import ModelSize, estimate_memory
from training.preflight.resources import ResourceError, check_resources
from training.settings.adapter_settings import AdapterSettings
from training.spec import TrainingSpec

GPUS = [{"CPU": 4.0, "GPU": 2.0}]
MILLION = 1_000_000


def make_spec(**changes: Any) -> TrainingSpec:
    values = {"base_model": "m", "train_file": "r", "adapter": {}, "zero_stage": 2}
    return TrainingSpec.model_validate({**values, "quantization": "nf4", **changes})


def test_arguments_of_transformers() -> None:
    device = torch.device("cuda", 1)
    four = build_quantization("nf4", device, torch.bfloat16)
    assert four["device_map"] == {"": device}
    config = four["quantization_config"]
    assert config.load_in_4bit
    assert config.bnb_4bit_quant_type == "nf4"
    assert config.bnb_4bit_compute_dtype == torch.bfloat16
    assert config.bnb_4bit_use_double_quant
    eight = build_quantization("int8", device, torch.bfloat16)["quantization_config"]
    assert eight.load_in_8bit
    assert not eight.load_in_4bit


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"adapter": None}, "quantised weights cannot be learned themselves: set adapter"),
        ({"zero_stage": 3}, "zero_stage is 3, .*: set zero_stage to 0, 1 or 2, or strategy to"),
        ({"strategy": "pipeline", "zero_stage": 1}, "adapter is set, and a pipeline"),
        ({"accelerator": "cpu"}, "which needs GPUs, and accelerator is 'cpu': set it to 'auto'"),
        ({"task": "sequence_classification"}, "for task 'causal_lm', and task is 'sequence_clas"),
        ({"adapter": {"init": "pissa"}}, "adapter.init is 'pissa', which needs weights that are"),
        ({"adapter": {"modules_to_save": ["lm_head"]}}, r"modules_to_save is \['lm_head'\]"),
        ({"quantization": "fp4"}, "quantization"),
    ],
)
def test_combinations_that_cannot_work_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        make_spec(**settings)


@pytest.mark.parametrize("settings", [{}, {"strategy": "ddp"}, {"quantization": "int8"}])
def test_gpus_and_bitsandbytes_are_required(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(**settings)
    kind = spec.quantization
    with pytest.raises(ResourceError, match=f"^quantization is '{kind}', which needs GPUs"):
        check_resources(spec, [{"CPU": 4.0}])
    monkeypatch.setattr(resources, "find_spec", lambda _: None)
    with pytest.raises(ResourceError, match=f"^quantization is '{kind}', which needs bitsandbytes"):
        check_resources(spec, GPUS)
    monkeypatch.setattr(resources, "find_spec", lambda _: object())
    check_resources(spec, GPUS)


@pytest.mark.parametrize(("kind", "num_bytes"), [("nf4", 0.5), ("int8", 1), ("none", 2)])
def test_quantised_weights_need_less_memory(kind: str, num_bytes: float) -> None:
    spec = make_spec(quantization=kind, num_workers=1, precision="bf16")
    _, device = estimate_memory(spec, ModelSize(MILLION, 0), on_gpu=True)
    assert device.certain == num_bytes * MILLION


def test_logits_of_quantised_weights_are_not_compared_with_those_of_the_base_model() -> None:
    probe: Any = object()
    assert select_comparable(make_spec(), probe) is None
    assert select_comparable(make_spec(quantization="none"), probe) is probe


class ScaledLinear(torch.nn.Linear):
    """A layer whose state has more than its parameters, as that of a quantised one."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight.absmax"] = torch.zeros(4)


def test_scales_of_quantised_weights_are_not_in_checkpoints() -> None:
    model: Any = torch.nn.Sequential(ScaledLinear(16, 16))
    model.get_output_embeddings = lambda: None
    add_adapter(model, AdapterSettings(), has_new_head=False, seed=0)
    assert sorted(model.state_dict()) == ["0.lora_A.default.weight", "0.lora_B.default.weight"]
