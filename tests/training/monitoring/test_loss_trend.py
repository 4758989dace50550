import math
from pathlib import Path

import numpy as np
import pytest

from training.launch import _compute
from training.monitoring.loss_trend import find_loss_rise
from training.run.folder import RunFolder
from training.run.run_record import RunRecord
from training.spec import TrainingSpec

NOISE = np.random.default_rng(0).normal(0.0, 1.0, 2000)


def make_metrics(losses: list[float]) -> list[dict[str, float]]:
    return [
        {"step": step, "loss": loss, "learned_tokens": 100}
        for step, loss in enumerate(losses, start=1)
    ]


def fall_and_rise(noise: float, num_steps: int = 200, last: float = 3.0) -> list[float]:
    """Return losses that fall from 3 to 1 in half of the steps, and rise to `last` in the rest."""
    half = num_steps // 2
    curve = [*np.linspace(3.0, 1.0, half), *np.linspace(1.0, last, half)]
    return [max(0.0, loss + noise * NOISE[at]) for at, loss in enumerate(curve)]


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_doubled_loss_is_found_with_its_steps(noise: float) -> None:
    rise = find_loss_rise(make_metrics(fall_and_rise(noise)))
    assert rise is not None
    assert rise.lowest == pytest.approx(1.1, abs=0.2)
    assert rise.last == pytest.approx(2.8, abs=0.3)
    assert 80 <= rise.lowest_steps[0] < rise.lowest_steps[1] <= 120
    assert rise.last_steps == (181, 200)
    assert "is 2." in rise.describe()
    assert rise.describe().startswith("The training loss rose")


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("level", [0.05, 1.0, 3.0])
def test_noise_is_not_a_loss_rise(noise: float, level: float) -> None:
    losses = [abs(level + noise * level * step) for step in NOISE]
    for num_steps in (30, 200, 2000):
        assert find_loss_rise(make_metrics(losses[:num_steps])) is None


def test_falling_or_slightly_rising_loss_is_not_a_loss_rise() -> None:
    assert find_loss_rise(make_metrics(list(np.linspace(3.0, 0.1, 200)))) is None
    assert find_loss_rise(make_metrics(fall_and_rise(0.0, last=1.8))) is None


def test_doubled_loss_close_to_zero_is_ignored() -> None:
    losses = [*np.linspace(1.0, 0.01, 100), *np.linspace(0.01, 0.05, 100)]
    assert find_loss_rise(make_metrics(losses)) is None


def test_too_few_steps_have_no_loss_rise() -> None:
    assert find_loss_rise([]) is None
    assert find_loss_rise(make_metrics(fall_and_rise(0.0, num_steps=14))) is None


def test_steps_are_weighted_by_learned_tokens() -> None:
    lines = make_metrics([1.0] * 40)
    for line in lines[-5:]:
        line |= {"loss": 1.0}
    lines[-1] |= {"loss": 50.0, "learned_tokens": 1}
    assert find_loss_rise(lines) is None


def test_lines_without_finite_loss_are_ignored() -> None:
    lines = make_metrics(fall_and_rise(0.0))
    lines += [{"step": 201, "loss": math.nan}, {"step": 202}]
    rise = find_loss_rise(lines)
    assert rise is not None
    assert rise.last_steps[1] == 200


def test_loss_rise_emits_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously, such a run only reported success."""
    run = RunFolder(tmp_path / "run")
    spec = TrainingSpec(base_model="m", train_file="r", precision="fp32")
    run.create(spec, RunRecord(id="run", created_at=1, writer="job", base_revision="x"))
    for line in make_metrics(fall_and_rise(0.0)):
        run.metrics.add(line)
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    for name in ("_check_base_model", "ensure_cpu_op", "_consolidate"):
        monkeypatch.setattr(f"training.launch.{name}", lambda *_: False)
    monkeypatch.setattr("training.preflight.preflight.check_settings", lambda *_: None)
    monkeypatch.setattr(
        "training.preflight.disk_and_memory.check_disk_and_memory", lambda *_, **__: None
    )
    monkeypatch.setattr("training.launch.train", lambda *_, **__: "finished")
    _compute(run, spec)
    (event,) = run.events.read()
    assert (event["level"], event["code"]) == ("warn", "loss_rose")
    assert event["data"]["last_loss"] > 2 * event["data"]["lowest_loss"]
