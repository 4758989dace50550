import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from storage import durable
from tests.tiny_encoder import build_tiny_encoder
from training.checkpoint.format import CheckpointError
from training.export.verification import RejectedError
from training.own_loop.result import NoModelError, build_loop_model
from training.spec import TrainingSpec


@pytest.fixture
def spec(tmp_path: Path) -> TrainingSpec:
    base_model = str(build_tiny_encoder(tmp_path / "bert"))
    return TrainingSpec(base_model=base_model, task="sequence_classification", loop="a:b")


@pytest.fixture
def checkpoint(tmp_path: Path, spec: TrainingSpec) -> Path:
    """A checkpoint with a model beside the state of an optimizer."""
    folder = tmp_path / "checkpoint"
    model = AutoModelForSequenceClassification.from_pretrained(
        spec.base_model, id2label={0: "no", 1: "yes"}
    )
    model.save_pretrained(folder / "model")
    torch.save({"step": 1}, folder / "model" / "state.pt")
    return folder


def add_files(directory: Path) -> None:
    durable.write_json(directory / "lineage.json", {})


def build(spec: TrainingSpec, checkpoint: Path, tmp_path: Path) -> Any:
    return build_loop_model(spec, checkpoint, tmp_path / "output", add_files)


@pytest.mark.parametrize("is_in_folder", [True, False])
def test_model_of_a_checkpoint_is_copied_and_verified(
    spec: TrainingSpec, checkpoint: Path, tmp_path: Path, is_in_folder: bool
) -> None:
    found = checkpoint if is_in_folder else checkpoint / "model"
    (found / "manifest-00000.json").write_text("{}")
    verification = build(spec, found, tmp_path)
    output = tmp_path / "output"
    assert verification.passed
    assert {check.name for check in verification.checks} >= {"values", "settings", "loads"}
    assert durable.is_published(output)
    assert not (output / "state.pt").exists()
    assert not (output / "manifest-00000.json").exists()
    assert (output / "lineage.json").is_file()
    model = AutoModelForSequenceClassification.from_pretrained(output)
    assert model.config.id2label == {0: "no", 1: "yes"}
    AutoTokenizer.from_pretrained(output)  # of the base model


def test_model_with_code_of_its_own_is_rejected(
    spec: TrainingSpec, checkpoint: Path, tmp_path: Path
) -> None:
    config = checkpoint / "model" / "config.json"
    settings = {**json.loads(config.read_text()), "auto_map": {"AutoConfig": "code.Config"}}
    config.write_text(json.dumps(settings))
    with pytest.raises(RejectedError, match="auto_map"):
        build(spec, checkpoint, tmp_path)
    assert not (tmp_path / "output").exists()
    assert not durable.read_json(tmp_path / "output.rejected" / "verification.json")["passed"]


def test_values_that_are_not_finite_are_rejected(
    spec: TrainingSpec, checkpoint: Path, tmp_path: Path
) -> None:
    file = checkpoint / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors["classifier.bias"][0] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(RejectedError, match="not finite in classifier.bias"):
        build(spec, checkpoint, tmp_path)


def test_model_of_another_class_is_rejected(
    spec: TrainingSpec, checkpoint: Path, tmp_path: Path
) -> None:
    file = checkpoint / "model" / "model.safetensors"
    tensors = {name: one for name, one in load_file(file).items() if "classifier" not in name}
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(RejectedError, match="does not load as a whole"):
        build(spec, checkpoint, tmp_path)


def test_checkpoint_without_model_is_explained(spec: TrainingSpec, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "state.pt").write_bytes(b"")
    with pytest.raises(NoModelError, match="has no model: expected a Hugging Face model directory"):
        build(spec, tmp_path / "checkpoint", tmp_path)


def test_checkpoint_whose_shards_are_gone_is_not_one_without_model(
    spec: TrainingSpec, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "latest").write_text("step_1")
    with pytest.raises(CheckpointError, match="names the shards 'step_1': they are gone"):
        build(spec, tmp_path / "checkpoint", tmp_path)
