"""The estimated peak memory of a worker is within 20 % of what recorded runs measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from apps.bundled import find_demonstration_model
from benchmarks.quantized import SHAPES
from training.base_model import load_config
from training.preflight.preflight import count_parameters
from training.preflight.requirements import ModelSize
from training.preflight.worker_memory import (
    ModelShape,
    estimate_activations,
    estimate_worker_memory,
)
from training.spec import TrainingSpec

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
TOLERANCE = 0.2
LONGEST_HANDBOOK_ROW = 111


def read_result(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def make_spec(**settings: Any) -> TrainingSpec:
    return TrainingSpec.model_validate({"base_model": "-", "train_file": "-", **settings})


@pytest.mark.parametrize("number", range(3))
def test_full_training_on_cpu(number: int) -> None:
    run = read_result("2026-11-26-worker-memory.json")["runs"][number]
    model = str(find_demonstration_model())
    num_parameters = count_parameters(model)
    shape = ModelShape.from_config(load_config(model))
    assert num_parameters
    assert shape
    size = ModelSize(num_parameters, num_parameters)
    spec = make_spec(**run["settings"])
    found = estimate_worker_memory(spec, size, shape, LONGEST_HANDBOOK_ROW, on_gpu=False)
    assert found == pytest.approx(run["peak_memory_bytes"], rel=TOLERANCE)


def test_adapter_on_cpu() -> None:
    result = read_result("2026-11-26-train-adapter.json")
    names = ("micro_batch_tokens", "zero_stage", "num_workers", "precision")
    settings = {name: result["settings"][name] for name in names}
    spec = make_spec(**settings, adapter={"rank": result["settings"]["adapter_rank"]})
    shape = ModelShape(num_layers=6, width=512, num_heads=8, vocabulary=3584)  # of the workbench
    size = ModelSize(21_109_248, 608_256)
    found = estimate_worker_memory(spec, size, shape, 1024, on_gpu=False)
    measured = result["last_round"]["ours"][0]["peak_memory_mb"] << 20
    assert found == pytest.approx(measured, rel=TOLERANCE)


def test_quantized_adapter_on_gpu() -> None:
    result = read_result("2026-11-26-gpu.json")["quantized"]
    own = SHAPES[result["settings"]["shape"]]
    shape = ModelShape(
        own["num_hidden_layers"], own["hidden_size"], own["num_attention_heads"], own["vocab_size"]
    )
    spec = make_spec(
        num_workers=1,
        zero_stage=0,
        precision="bf16",
        quantization="nf4",
        micro_batch_tokens=result["settings"]["micro_batch_tokens"],
        adapter={"rank": result["settings"]["rank"]},
    )
    size = ModelSize(1_235_814_400, 5_636_096)
    found = estimate_worker_memory(spec, size, shape, 1024, on_gpu=True)
    measured = result["rounds"]["ours"][0]["peak_memory_mb"] << 20
    assert found == pytest.approx(measured, rel=TOLERANCE)


def test_activation_checkpointing_keeps_one_value_per_layer() -> None:
    shape = ModelShape(num_layers=10, width=8, num_heads=1, vocabulary=0)
    spec = make_spec(micro_batch_tokens=8)
    whole = estimate_activations(spec, shape, 8, 10, on_gpu=True)
    assert whole == 10 * 34 * 8 * 8
    spec = make_spec(micro_batch_tokens=8, activation_checkpointing=True)
    assert estimate_activations(spec, shape, 8, 10, on_gpu=True) == (10 * 2 + 34) * 8 * 8


def test_configuration_without_layers_has_no_shape() -> None:
    class Text:
        hidden_size = 8

        def get_text_config(self) -> "Text":
            return self

    assert ModelShape.from_config(Text()) is None
