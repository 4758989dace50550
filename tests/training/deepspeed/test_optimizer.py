import pytest
import torch

from training.deepspeed.optimizer import build_optimizer, learning_rate_at
from training.spec import TrainingSpec


def make_spec(**settings: object) -> TrainingSpec:
    return TrainingSpec.model_validate({"base_model": "m", "train_file": "f", **settings})


def test_learning_rate_rises_then_falls() -> None:
    spec = make_spec(learning_rate=1e-3, warmup_ratio=0.1)
    rates = [learning_rate_at(step, 100, spec) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9] == rates[10] == 1e-3 == max(rates)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 1e-5


@pytest.mark.parametrize(
    ("schedule", "middle"), [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5)]
)
def test_learning_rate_schedules_without_warm_up(schedule: str, middle: float) -> None:
    spec = make_spec(learning_rate=1.0, warmup_ratio=0, lr_schedule=schedule)
    assert learning_rate_at(0, 100, spec) == 1.0
    assert learning_rate_at(50, 100, spec) == pytest.approx(middle)


def test_warmup_steps_override_warmup_ratio() -> None:
    spec = make_spec(learning_rate=1.0, warmup_ratio=0.5, warmup_steps=4, lr_schedule="linear")
    rates = [learning_rate_at(step, 104, spec) for step in range(104)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[54] == pytest.approx(0.5)
    at_once = make_spec(learning_rate=1.0, warmup_ratio=0.5, warmup_steps=0)
    assert learning_rate_at(0, 100, at_once) == 1.0


def test_single_step_uses_full_learning_rate() -> None:
    assert learning_rate_at(0, 1, make_spec(learning_rate=0.5)) == 0.5


def test_weight_decay_applies_only_to_matrices() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    optimizer = build_optimizer(model, make_spec(weight_decay=0.1))
    decayed, undecayed = optimizer.param_groups
    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 4)]
    assert decayed["weight_decay"] == 0.1
    assert len(undecayed["params"]) == 3
    assert undecayed["weight_decay"] == 0.0
