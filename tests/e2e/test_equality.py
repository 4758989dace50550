"""DeepSpeed workers compared with a plain PyTorch loop, and with themselves after a resume."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.training_group import Case, Trained, train_in_group, train_plainly, write_table
from tests.tiny_model import build_tiny_model
from training.batching import BatchLayout

pytestmark = [pytest.mark.e2e, pytest.mark.computes]

LAYOUTS: tuple[BatchLayout, ...] = ("padded", "packed")
GRID = [
    Case({"zero_stage": stage, "gradient_accumulation_steps": accumulation}, layout)
    for stage in (0, 1, 2, 3)
    for accumulation in (1, 4)
    for layout in LAYOUTS
]
FP16_SCALE = {"enabled": True, "initial_scale_power": 8}
VARIANTS: list[dict[str, Any]] = [
    *({"zero_stage": stage, "precision": "fp32"} for stage in (0, 1, 2, 3)),
    *({"zero_stage": stage, "precision": "bf16"} for stage in (0, 1, 2, 3)),
    {"zero_stage": 3, "precision": "bf16", "gradient_accumulation_steps": 3},
    {"zero_stage": 2, "offload_optimizer": True},
    {"zero_stage": 3, "offload_optimizer": True, "offload_parameters": True},
    *(
        # A scale at which no gradient overflows, because skipped steps would depend on rounding.
        {"zero_stage": stage, "precision": "fp16", "deepspeed": {"fp16": FP16_SCALE}}
        for stage in (2, 3)
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("equality")
    build_tiny_model(folder / "tiny")
    write_table(folder / "rows.arrow")
    return folder


def differ(found: Trained, expected: Trained) -> dict[str, float]:
    """Return the largest relative differences of losses, gradient norms, and parameters (norm)."""
    parameters = [
        float((found.parameters[name] - tensor).norm() / tensor.norm())
        for name, tensor in expected.parameters.items()
    ]
    return {
        "loss": _differ_most(found.losses, expected.losses),
        "grad_norm": _differ_most(found.grad_norms, expected.grad_norms),
        "parameter": max(parameters),
    }


def _differ_most(found: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def measure_smallest_change(folder: Path, case: Case, trained: Trained) -> float:
    """Return the smallest change of a parameter by training, relative to its norm."""
    untrained = train_plainly(folder, replace(case, last=0)).parameters
    return min(
        float((trained.parameters[name] - tensor).norm() / tensor.norm())
        for name, tensor in untrained.items()
    )


@pytest.mark.parametrize("world_size", [1, 2])
def test_each_zero_stage_equals_plain_loop(folder: Path, world_size: int) -> None:
    cases = [replace(case, num_shares=world_size) for case in GRID]
    worst = dict.fromkeys(("loss", "grad_norm", "parameter"), 0.0)
    plain: dict[tuple[int, BatchLayout], Trained] = {}
    for case, found in zip(cases, train_in_group(world_size, folder, cases), strict=True):
        key = (case.settings["gradient_accumulation_steps"], case.layout)
        if key not in plain:
            plain[key] = train_plainly(folder, case)
            assert measure_smallest_change(folder, case, plain[key]) > 5e-3
        differences = differ(found, plain[key])
        print(world_size, case.settings, case.layout, differences)
        worst = {name: max(value, differences[name]) for name, value in worst.items()}
    print(f"{world_size} workers, largest relative differences: {worst}")
    assert worst["loss"] < 1e-4
    assert worst["grad_norm"] < 5e-3
    assert worst["parameter"] < 1e-4


def test_activation_checkpointing_and_offloading_equal_plain_loop(folder: Path) -> None:
    settings: list[dict[str, Any]] = [
        {"activation_checkpointing": True},
        {"zero_stage": 2, "activation_checkpointing": True},
        {"zero_stage": 2, "offload_optimizer": True},
        {"offload_optimizer": True, "offload_parameters": True},
    ]
    cases = [Case(setting) for setting in settings]
    plain = train_plainly(folder, Case())
    for case, found in zip(cases, train_in_group(2, folder, cases), strict=True):
        differences = differ(found, plain)
        assert differences["loss"] < 1e-4, case
        assert differences["parameter"] < 1e-4, case


def make_variants(folder: Path, **changes: Any) -> list[Case]:
    return [
        Case(
            settings,
            checkpoint=folder / f"checkpoint-{number}",
            allow_fp16=settings.get("precision") == "fp16",
            **changes,
        )
        for number, settings in enumerate(VARIANTS)
    ]


@pytest.mark.parametrize("saved_by", [1, 2])
def test_resumed_training_equals_uninterrupted_training(
    folder: Path, tmp_path: Path, saved_by: int
) -> None:
    whole = train_in_group(saved_by, folder, make_variants(tmp_path, save_after=5))
    for world_size in (1, 2):
        cases = make_variants(tmp_path, first=5, saved_by=saved_by)
        for case, found, expected in zip(
            cases, train_in_group(world_size, folder, cases), whole, strict=True
        ):
            description = f"{saved_by} → {world_size} workers, {case.settings}"
            rest = Trained(expected.losses[5:], expected.grad_norms[5:], expected.parameters)
            if world_size == saved_by:
                assert found.losses == rest.losses, description
                for name, tensor in rest.parameters.items():
                    assert torch.equal(found.parameters[name], tensor), (description, name)
            else:
                print(description, differ(found, rest))
                assert found.losses == pytest.approx(rest.losses, rel=1e-2), description
                if case.settings.get("precision") == "fp32":
                    assert differ(found, rest)["parameter"] < 1e-4, description


def test_step_with_fp16_overflow_is_skipped(folder: Path) -> None:
    scale = {"fp16": {"enabled": True, "initial_scale_power": 24, "hysteresis": 1}}
    case = Case({"precision": "fp16", "deepspeed": scale}, allow_fp16=True, last=12)
    (found,) = train_in_group(2, folder, [case])
    assert 0 < found.num_skipped < 12, "the loss scale is lowered until steps are taken again"
    assert isfinite(found.grad_norms[-1])
