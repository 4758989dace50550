import json
from pathlib import Path

import pytest

from tests.tiny_model import build_tiny_model
from training.pipeline.architecture import check_architecture
from training.preflight.preflight import check_settings
from training.spec import SettingError, TrainingSpec, load_spec

ROOT = Path(__file__).parents[3]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of two decoder layers."""
    return build_tiny_model(tmp_path / "tiny")


def make_spec(model: Path, num_workers: int) -> TrainingSpec:
    values = {"base_model": str(model), "train_file": "f", "strategy": "pipeline"}
    return TrainingSpec.model_validate({**values, "num_workers": num_workers})


def test_as_many_stages_as_layers_are_accepted(model: Path) -> None:
    check_settings(make_spec(model, 2))


def test_more_stages_than_layers_are_refused(model: Path) -> None:
    expected = "the pipeline has 3 stages, and base_model 'tiny' has 2 decoder layers: .* to 2 or"
    with pytest.raises(SettingError, match=expected):
        check_settings(make_spec(model, 3))


def test_other_architectures_are_refused(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "gpt_neox"}))
    expected = "'gpt_neox', which a pipeline cannot cut into stages; it can cut gpt2, llama, "
    with pytest.raises(SettingError, match=expected):
        check_architecture(make_spec(model, 2))


def test_example_is_accepted() -> None:
    check_settings(load_spec(ROOT / "examples" / "pipeline.yaml"))
