"""The loss curve as SVG, drawn on the server: small, and updated without flicker."""

import math
from collections.abc import Sequence

from apps.client.resources import Metrics

MAX_POINTS = 300
NUM_TICKS = 4
SMOOTHING = 0.8

Point = tuple[float, float]


def render_loss_curve(metrics: Sequence[Metrics]) -> str:
    """Draw the loss by step: a thin line for the values, a bold one for their moving average.

    The lines are in a 100 x 100 view box that is stretched; the labels are HTML, which is not.
    """
    points = [
        (float(entry.step), entry.loss)
        for entry in metrics
        if entry.loss is not None and math.isfinite(entry.loss)
    ]
    if not points:
        return '<p class="ts-empty">The curve appears with the first step.</p>'
    last_step = max(float(metrics[-1].num_steps), points[-1][0], 1.0)
    ticks = choose_ticks(min(loss for _, loss in points), max(loss for _, loss in points))
    scale = (last_step, ticks[0], ticks[-1])
    raw = _draw(downsample(points), scale)
    mean = _draw(downsample(smooth(points)), scale)
    lines = "".join(_render_tick(tick, ticks) for tick in ticks)
    x, y = _place(smooth(points)[-1], scale)
    return (
        f'<figure class="ts-curve" data-points="{len(points)}">'
        f"<figcaption>Loss, latest {points[-1][1]:.3f}</figcaption>"
        f'<div class="ts-plot">{lines}'
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="Loss from {points[0][1]:.3f} to {points[-1][1]:.3f}">'
        f'<path class="ts-raw" d="{raw}"/><path class="ts-mean" d="{mean}"/></svg>'
        f'<b style="left:{x:.2f}%;top:{y:.2f}%"></b></div>'
        f'<div class="ts-steps"><span>0</span><span>step</span><span>{last_step:,.0f}</span></div>'
        "</figure>"
    )


def smooth(points: Sequence[Point]) -> list[Point]:
    """Return the exponential moving average, bias-corrected: the first value is unchanged."""
    mean, weight, smoothed = 0.0, 0.0, []
    for step, loss in points:
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        weight = SMOOTHING * weight + (1 - SMOOTHING)
        smoothed.append((step, mean / weight))
    return smoothed


def downsample(points: Sequence[Point]) -> list[Point]:
    """Keep at most `MAX_POINTS` evenly spaced points, always including the last one."""
    stride = math.ceil(len(points) / MAX_POINTS)
    return list(points[::-1][::stride][::-1])


def choose_ticks(lowest: float, highest: float) -> list[float]:
    """Return evenly spaced round values that enclose a range."""
    span = max(highest - lowest, abs(highest) * 0.05, 1e-6)
    rough = span / NUM_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(lowest / step), math.ceil(highest / step)
    if first == last:
        last += 1
    return [index * step for index in range(first, last + 1)]


def _render_tick(tick: float, ticks: Sequence[float]) -> str:
    top = 100 * (ticks[-1] - tick) / (ticks[-1] - ticks[0])
    return f'<span class="ts-tick" style="top:{top:.2f}%"><em>{tick:.4g}</em></span>'


def _draw(points: Sequence[Point], scale: tuple[float, float, float]) -> str:
    placed = [_place(point, scale) for point in points]
    return "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in placed)


def _place(point: Point, scale: tuple[float, float, float]) -> Point:
    last_step, low, high = scale
    return 100 * point[0] / last_step, 100 * (high - point[1]) / (high - low)
