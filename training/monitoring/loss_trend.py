"""Detection of a loss that was much lower during a run than at its end.

The loss of single steps is noisy, because steps have different rows. So means over windows of a
tenth of the steps (5 to 50), weighted by learned tokens, are compared: the last window with the
lowest one. The loss has risen if the last mean is at least twice the lowest, and the difference is
at least 0.1 nats per token (below that, both are close to zero) and at least four standard errors
(which the lowest of many windows does not reach by chance).
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

_SHARE = 0.1
_MIN_WINDOW, _MAX_WINDOW = 5, 50
_MIN_WINDOWS = 3
_FACTOR = 2.0
_MIN_RISE = 0.1  # nats per token
_NUM_ERRORS = 4.0


class LossRise(NamedTuple):
    """The lowest mean loss of a window and the last one, each with its steps."""

    lowest: float
    lowest_steps: tuple[int, int]
    last: float
    last_steps: tuple[int, int]

    def describe(self) -> str:
        """Describe the rise and what to do."""
        return (
            f"The training loss rose: it was {self.lowest:.4f} in steps {self.lowest_steps[0]} to "
            f"{self.lowest_steps[1]} and is {self.last:.4f} in steps {self.last_steps[0]} to "
            f"{self.last_steps[1]}. The model may be worse than it was; lower learning_rate, or "
            "set keep to 'best' and rows to evaluate on"
        )


def find_loss_rise(metrics: Iterable[Mapping[str, float]]) -> LossRise | None:
    """Return how far the loss rose, from the metrics of all steps; None if it did not."""
    lines = [
        (int(line["step"]), float(line["loss"]), float(line.get("learned_tokens", 1.0)))
        for line in metrics
        if math.isfinite(line.get("loss", math.nan))
    ]
    size = min(_MAX_WINDOW, max(_MIN_WINDOW, int(_SHARE * len(lines))))
    if len(lines) < _MIN_WINDOWS * size:
        return None
    steps = [step for step, _, _ in lines]
    losses = np.array([loss for _, loss, _ in lines])  # [steps]
    weights = np.array([max(weight, 1.0) for _, _, weight in lines])
    windows = np.lib.stride_tricks.sliding_window_view(losses, size)  # [windows, size]
    shares = np.lib.stride_tricks.sliding_window_view(weights, size)
    means = (windows * shares).sum(axis=1) / shares.sum(axis=1)
    at = int(means.argmin())
    lowest, last = float(means[at]), float(means[-1])
    error = math.sqrt((windows[at].var(ddof=1) + windows[-1].var(ddof=1)) / size)
    if last < _FACTOR * lowest or last - lowest < max(_MIN_RISE, _NUM_ERRORS * error):
        return None
    return LossRise(lowest, (steps[at], steps[at + size - 1]), last, (steps[-size], steps[-1]))
