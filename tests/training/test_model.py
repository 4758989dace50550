"""Loading of models with a new head."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, LlamaConfig, OPTConfig, PretrainedConfig

from tests.tiny_encoder import build_tiny_encoder
from training.model import WeightsError, choose_layout, load_model
from training.spec import TrainingSpec
from training.task import Objective, find_task

SUMMARY = {
    "problem_type": "single_label_classification",
    "labels": ["a", "b", "c"],
    "class_weights": [],
    "pad_token_id": 0,
}


def open_classification(folder: Path) -> tuple[TrainingSpec, Objective]:
    spec = TrainingSpec.model_validate(
        {
            "base_model": str(folder),
            "train_file": "-",
            "task": "sequence_classification",
            "precision": "fp32",
        }
    )
    return spec, find_task(spec.task).open_objective(spec, SUMMARY)


@pytest.mark.parametrize("num_labels", [None, 2, 3])
def test_head_of_other_size_is_new_and_the_same_for_a_seed(
    tmp_path: Path, num_labels: int | None
) -> None:
    spec, objective = open_classification(build_tiny_encoder(tmp_path, num_labels=num_labels))
    first, second = (load_model(spec, objective) for _ in range(2))
    weights = first.state_dict()
    assert weights["classifier.weight"].shape == (3, 32)
    for name, weight in second.state_dict().items():
        assert torch.equal(weight, weights[name]), name


def test_encoder_weights_of_other_shape_are_refused(tmp_path: Path) -> None:
    spec, objective = open_classification(build_tiny_encoder(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    with pytest.raises(WeightsError, match=r"^the weights of '.*' do not fit its .*bert\.encoder"):
        load_model(spec, objective)


CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("config", "settings", "device", "expected"),
    [
        (LlamaConfig(), {}, CPU, "packed"),
        (LlamaConfig(), {"precision": "bf16"}, GPU, "padded"),  # without flash-attn
        (LlamaConfig(), {"batch_layout": "padded"}, CPU, "padded"),
        (LlamaConfig(), {"batch_layout": "flattened"}, GPU, "packed"),
        (LlamaConfig(), {"micro_batch_tokens": 8192}, CPU, "packed"),
        (LlamaConfig(), {"micro_batch_tokens": 8193}, CPU, "padded"),
        (LlamaConfig(), {"strategy": "pipeline", "num_workers": 2}, CPU, "padded"),
        (LlamaConfig(), {"task": "preference"}, CPU, "padded"),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0}), {}, CPU, "padded"),
        (LlamaConfig(rope_parameters={"rope_type": "linear", "factor": 2.0}), {}, CPU, "packed"),
        (Gemma2Config(), {}, CPU, "padded"),
        (Gemma2Config(), {"batch_layout": "flattened"}, CPU, "packed"),
        (OPTConfig(), {}, CPU, "padded"),
    ],
)
def test_rows_are_packed_where_attention_separates_them(
    config: PretrainedConfig,
    settings: dict[str, Any],
    device: torch.device,
    expected: str,
    tmp_path: Path,
) -> None:
    config.save_pretrained(tmp_path)
    spec = TrainingSpec.model_validate(
        {"base_model": str(tmp_path), "train_file": "rows", "micro_batch_tokens": 2048, **settings}
    )
    assert choose_layout(spec, device) == expected
