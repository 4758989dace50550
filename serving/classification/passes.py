"""The division of rows into forward passes, so that little of a pass is padding."""

from collections.abc import Sequence

MAX_PASS_TOKENS = 4_096
"""Most tokens of one forward pass, padding included, unless a single input has more."""
PASS_TOKENS = 32
"""What the calls of one forward pass cost besides its computation, as tokens."""


def plan_passes(lengths: Sequence[int]) -> list[list[int]]:
    """Return the indices of the rows of each pass: similar lengths, in ascending order.

    `lengths` are positive. A pass costs the tokens of all its rows, each padded to the longest, and
    `PASS_TOKENS`; the passes are those of the lowest cost. None has more than `MAX_PASS_TOKENS`
    unless it is a single row.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    costs, starts = [0], [0]  # of the cheapest passes of the first rows, and where the last begins
    for end, index in enumerate(order, 1):
        fitting = max(1, MAX_PASS_TOKENS // lengths[index])
        cost, start = min(
            (costs[start] + (end - start) * lengths[index] + PASS_TOKENS, start)
            for start in range(max(0, end - fitting), end)
        )
        costs.append(cost)
        starts.append(start)
    passes, end = [], len(order)
    while end:
        passes.append(order[starts[end] : end])
        end = starts[end]
    return passes[::-1]
