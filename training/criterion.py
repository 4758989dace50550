"""The figure by which the checkpoints of a run are compared."""

from typing import NamedTuple


class Criterion(NamedTuple):
    """The figure of evaluations by which checkpoints are compared: 'loss', or a metric."""

    metric: str = "loss"
    is_lower_better: bool = True

    def rank(self, value: float) -> float:
        """Return a number that is lower for a better value."""
        return value if self.is_lower_better else -value
