"""The loss curve as SVG."""

import pytest
from apps.ui.runs.loss_curve import MAX_POINTS, choose_ticks, downsample, render_loss_curve, smooth

from apps.client.resources import Metrics


def make_metrics(losses: list[float], num_steps: int) -> list[Metrics]:
    return [
        Metrics(step=index + 1, num_steps=num_steps, loss=loss) for index, loss in enumerate(losses)
    ]


def test_each_step_extends_curve() -> None:
    first = render_loss_curve(make_metrics([4.0], 10))
    second = render_loss_curve(make_metrics([4.0, 2.0], 10))
    assert 'data-points="1"' in first
    assert 'data-points="2"' in second
    assert first != second


def test_empty_curve_shows_text() -> None:
    assert "appears with the first step" in render_loss_curve([])


def test_loss_that_is_not_finite_is_skipped() -> None:
    assert 'data-points="1"' in render_loss_curve(make_metrics([float("nan"), 2.0], 10))


def test_constant_loss_is_drawn() -> None:
    assert "nan" not in render_loss_curve(make_metrics([0.0, 0.0], 2))


@pytest.mark.parametrize("bounds", [(0.1, 4.3), (2.0, 2.0), (0.0, 0.0), (1e-5, 3e-5), (90, 1200)])
def test_ticks_enclose_values(bounds: tuple[float, float]) -> None:
    ticks = choose_ticks(*bounds)
    assert ticks[0] <= bounds[0]
    assert bounds[1] <= ticks[-1]
    assert 2 <= len(ticks) <= 7


def test_moving_average_starts_at_first_value() -> None:
    losses = [loss for _, loss in smooth([(1.0, 5.0), (2.0, 5.0), (3.0, 0.0)])]
    assert losses[:2] == pytest.approx([5.0, 5.0])
    assert 0 < losses[2] < 5


def test_long_curve_is_downsampled_and_keeps_last_point() -> None:
    points = [(float(step), 1.0) for step in range(1, 10_001)]
    sampled = downsample(points)
    assert len(sampled) <= MAX_POINTS
    assert sampled[-1] == points[-1]
    assert sampled == sorted(sampled)
