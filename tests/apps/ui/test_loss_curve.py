"""The loss curve as SVG."""

import pytest

from apps.client.resources import Metrics
from apps.ui.loss_curve import MAX_POINTS, choose_ticks, render_loss_curve, smooth, thin_out


def make_metrics(losses: list[float], num_steps: int) -> list[Metrics]:
    return [
        Metrics(step=index + 1, num_steps=num_steps, loss=loss) for index, loss in enumerate(losses)
    ]


def test_each_point_moves_the_curve_on() -> None:
    first = render_loss_curve(make_metrics([4.0], 10))
    second = render_loss_curve(make_metrics([4.0, 2.0], 10))
    assert 'data-points="1"' in first
    assert 'data-points="2"' in second
    assert first != second


def test_nothing_to_draw_is_said_in_words() -> None:
    assert "appears with the first step" in render_loss_curve([])


def test_a_loss_that_is_no_number_is_left_out() -> None:
    assert 'data-points="1"' in render_loss_curve(make_metrics([float("nan"), 2.0], 10))


def test_a_flat_curve_can_be_drawn() -> None:
    assert "nan" not in render_loss_curve(make_metrics([0.0, 0.0], 2))


@pytest.mark.parametrize("bounds", [(0.1, 4.3), (2.0, 2.0), (0.0, 0.0), (1e-5, 3e-5), (90, 1200)])
def test_ticks_enclose_the_values(bounds: tuple[float, float]) -> None:
    ticks = choose_ticks(*bounds)
    assert ticks[0] <= bounds[0]
    assert bounds[1] <= ticks[-1]
    assert 2 <= len(ticks) <= 7


def test_the_mean_starts_at_the_first_value() -> None:
    losses = [loss for _, loss in smooth([(1.0, 5.0), (2.0, 5.0), (3.0, 0.0)])]
    assert losses[:2] == pytest.approx([5.0, 5.0])
    assert 0 < losses[2] < 5


def test_a_long_run_is_thinned_and_keeps_its_end() -> None:
    points = [(float(step), 1.0) for step in range(1, 10_001)]
    thinned = thin_out(points)
    assert len(thinned) <= MAX_POINTS
    assert thinned[-1] == points[-1]
    assert thinned == sorted(thinned)
