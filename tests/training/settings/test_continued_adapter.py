"""The settings of a training that continues an adapter, read from the folder of PEFT."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.peft_adapters import write_adapter
from tests.tiny_model import build_tiny_model
from training.settings.continued_adapter import continue_settings
from training.spec import load_spec


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"method": "lora", "rank": 4, "alpha": 8.0}),
        ({"use_dora": True, "r": 2}, {"method": "dora", "rank": 2, "alpha": 8.0}),
        ({"use_rslora": True, "lora_alpha": 3}, {"method": "rslora", "rank": 4, "alpha": 3.0}),
    ],
)
def test_settings_are_those_of_the_folder(
    tiny: Path, tmp_path: Path, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    folder = write_adapter(tiny, tmp_path / "adapter", **changes)
    found = continue_settings(folder, {"dropout": 0.1, "target_modules": "auto", "alpha": None})
    targets = ["down_proj", "q_proj", "v_proj"]
    assert found == {**expected, "target_modules": targets, "dropout": 0.1}
    assert continue_settings(folder, found) == found


def test_layers_of_a_limited_adapter_are_read_from_its_tensors(tiny: Path, tmp_path: Path) -> None:
    folder = write_adapter(
        tiny, tmp_path / "adapter", target_modules=["q_proj"], layers_to_transform=[1]
    )
    found = continue_settings(folder, None)
    assert found["target_modules"] == ["model.layers.1.self_attn.q_proj"]


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"rank": 8}, "adapter.rank is 8, and the adapter to continue has 4: leave rank out"),
        ({"alpha": 4}, "adapter.alpha is 4, and the adapter to continue has 8.0: leave alpha out"),
        (
            {"target_modules": ["q_proj"]},
            r"adapter.target_modules is \['q_proj'\], and the adapter",
        ),
        ({"init": "olora"}, "adapter.init is 'olora', and a continued adapter starts from its own"),
    ],
)
def test_other_settings_are_refused(
    tiny: Path, tmp_path: Path, given: dict[str, Any], refusal: str
) -> None:
    folder = write_adapter(tiny, tmp_path / "adapter")
    with pytest.raises(ValueError, match=f"^{refusal}"):
        continue_settings(folder, given)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (None, "No such file or directory; expected the folder of an adapter of LoRA or DoRA"),
        ({"peft_type": "IA3"}, "its 'peft_type' is 'IA3', expected 'LORA'"),
        ({"peft_type": "LORA", "r": "8"}, "its 'r' is '8', expected a number"),
        (
            {"peft_type": "LORA", "use_dora": True, "use_rslora": True},
            "it combines DoRA and rsLoRA",
        ),
    ],
)
def test_folder_without_an_adapter_is_refused(
    tmp_path: Path, settings: dict[str, Any] | None, fault: str
) -> None:
    if settings is not None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=f"^base_adapter is '.*', which cannot be.*{fault}"):
        continue_settings(tmp_path, None)


def test_spec_file_names_the_folder(tiny: Path, tmp_path: Path) -> None:
    folder = write_adapter(tiny, tmp_path / "adapter")
    content = {"base_model": "m", "train_file": "r", "base_adapter": "adapter"}
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(content))
    spec = load_spec(file)
    assert spec.base_adapter == str(folder)
    assert spec.adapter is not None
    assert (spec.adapter.rank, spec.adapter.export) == (4, "adapter")
    file.write_text(yaml.safe_dump({**content, "base_adapter": "nothing"}))
    with pytest.raises(ValueError, match="^spec.yaml: base_adapter is 'nothing', which cannot be "):
        load_spec(file)
