from typing import Any

import pytest

from training.preflight.requirements import (
    ModelSize,
    Need,
    estimate_checkpoint,
    estimate_disk,
    estimate_memory,
    estimate_model,
)
from training.spec import TrainingSpec

NUM = 1_000_000
SIZE = ModelSize(NUM, NUM)


def make_spec(**changes: Any) -> TrainingSpec:
    values = {"base_model": "m", "train_file": "r", "precision": "bf16", "zero_stage": 3}
    return TrainingSpec.model_validate({**values, **changes})


def test_checkpoint_has_weights_and_both_moments_in_fp32() -> None:
    assert estimate_checkpoint(make_spec(), SIZE).certain == 12 * NUM
    below = estimate_checkpoint(make_spec(zero_stage=1), SIZE)
    assert below.certain == 12 * NUM
    assert below.likely == int(1.1 * 14 * NUM)


@pytest.mark.parametrize(
    ("settings", "certain"),
    [
        ({"epochs": 1}, 14),  # one checkpoint beside the model
        ({"epochs": 2, "keep_checkpoints": 2}, 26),
        ({"epochs": 9, "keep_checkpoints": 2}, 36),  # three checkpoints before one is removed
        ({"epochs": 9, "keep_checkpoints": 2, "precision": "fp32"}, 36),
        ({"epochs": 9, "early_stopping_patience": 1, "validation_fraction": 0.1}, 14),
        ({"epochs": 9, "max_steps": 10, "keep_checkpoints": 3}, 14),  # may be a single epoch
        ({"epochs": 1, "precision": "fp32", "export_dtype": "bf16"}, 14),
    ],
)
def test_disk_estimate_has_kept_checkpoints_and_one_more(
    settings: dict[str, Any], certain: int
) -> None:
    need = estimate_disk(make_spec(**settings), SIZE, has_trained=False)
    assert need.certain == certain * NUM
    assert need.likely >= need.certain


def test_disk_estimate_of_trained_run_has_only_model() -> None:
    assert estimate_disk(make_spec(epochs=9), SIZE, has_trained=True).certain == 2 * NUM


@pytest.mark.parametrize(
    ("settings", "certain"),
    [
        ({"zero_stage": 3}, 14),
        ({"zero_stage": 2}, 2 * 4 + 12),
        ({"zero_stage": 0}, (2 + 12) * 4),
        ({"zero_stage": 0, "precision": "fp32"}, (4 + 8) * 4),
        ({"zero_stage": 0, "min_workers": 1, "save_every_steps": 5}, 14),
        ({"zero_stage": 1, "strategy": "pipeline"}, 14),
        ({"zero_stage": 1, "strategy": "pipeline", "pipeline_stages": 2}, 2 * 2 + 12),
    ],
)
def test_memory_on_cpus_is_sum_of_all_workers(settings: dict[str, Any], certain: int) -> None:
    host, device = estimate_memory(make_spec(num_workers=4, **settings), SIZE, on_gpu=False)
    assert host.certain == certain * NUM
    assert host.likely > host.certain
    assert device == Need(0, 0)


@pytest.mark.parametrize(
    ("settings", "on_host", "on_device"),
    [
        ({}, 0, 14 / 4),
        ({"zero_stage": 1}, 0, 2 + 12 / 4),
        ({"offload_optimizer": True}, 12, 2 / 4),
        ({"offload_optimizer": True, "offload_parameters": True}, 14, 0),
    ],
)
def test_memory_on_gpus_depends_on_sharding_and_offloading(
    settings: dict[str, Any], on_host: int, on_device: float
) -> None:
    host, device = estimate_memory(make_spec(num_workers=4, **settings), SIZE, on_gpu=True)
    assert host.certain == on_host * NUM
    assert device.certain == on_device * NUM


def test_adapter_needs_little_beside_weights() -> None:
    size = ModelSize(NUM, NUM // 100)
    spec = make_spec(num_workers=4, zero_stage=2, adapter={})
    assert estimate_checkpoint(spec, size).certain == 12 * NUM // 100
    host, _ = estimate_memory(spec, size, on_gpu=False)
    assert host.certain == 2 * 4 * NUM + 12 * NUM // 100


@pytest.mark.parametrize(
    ("adapter", "weights", "likely"),
    [
        (None, 2 * NUM, 2 * NUM),
        ({"export": "merged"}, 2 * NUM, 2 * NUM),
        ({"export": "adapter"}, 2 * NUM // 100, 2 * NUM // 100),
        ({"export": "adapter", "init": "pissa"}, 2 * NUM // 100, 4 * NUM // 100),
        ({"export": "merged", "init": "pissa"}, 2 * NUM, 2 * NUM),
    ],
)
def test_disk_has_learned_state_and_published_model(
    adapter: dict[str, Any] | None, weights: int, likely: int
) -> None:
    num_learned = NUM if adapter is None else NUM // 100
    size = ModelSize(NUM, num_learned)
    spec = make_spec(epochs=1, adapter=adapter)
    assert estimate_model(spec, size).certain == weights
    assert estimate_model(spec, size).likely == pytest.approx(1.1 * likely, abs=1)
    disk = estimate_disk(spec, size, has_trained=False)
    assert disk.certain == 12 * num_learned + weights
    assert disk.likely == pytest.approx(1.1 * (12 * num_learned + likely), abs=2)


@pytest.mark.parametrize(
    ("export", "disk", "memory"),
    [("adapter", 2 * NUM // 100, 2 * NUM), ("merged", 2 * NUM, 4 * NUM)],
)
def test_export_of_adapter_needs_its_base_model(export: str, disk: int, memory: int) -> None:
    size = ModelSize(NUM, NUM // 100)
    adapter = {"export": export}
    spec = make_spec(adapter=adapter)
    assert estimate_disk(spec, size, has_trained=True).certain == disk
    sharded = make_spec(num_workers=4, offload_optimizer=True, adapter=adapter)
    assert estimate_memory(sharded, size, on_gpu=True)[0].certain == memory
    quantised = make_spec(quantization="nf4", zero_stage=0, strategy="ddp", adapter=adapter)
    host, device = estimate_memory(quantised, size, on_gpu=True)
    assert host.certain == 4 * NUM
    assert device.certain < NUM
