"""Which layers each stage of a pipeline has."""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate


def choose_bounds(weights: Sequence[float], num_stages: int) -> list[int]:
    """Cut layers into stages so that the heaviest stage is as light as possible.

    Returns the first layer of each stage, and the number of layers: stage i has the layers from
    `bounds[i]` to `bounds[i + 1]`. Every stage has a layer; of equal cuts, the earliest is chosen.
    """
    sums = [0.0, *accumulate(weights)]
    num_layers = len(weights)

    @cache
    def cut(first: int, stages: int) -> tuple[float, tuple[int, ...]]:
        """Return the weight of the heaviest of the last stages, and where each of them ends."""
        if stages == 1:
            return sums[-1] - sums[first], (num_layers,)
        options = []
        for end in range(first + 1, num_layers - stages + 2):
            heaviest, ends = cut(end, stages - 1)
            options.append((max(sums[end] - sums[first], heaviest), (end, *ends)))
        return min(options)

    return [0, *cut(0, num_stages)[1]]


def merge_ends(weights: Sequence[float], num_before: int, num_after: int) -> list[float]:
    """Add the weights of the layers before and after the decoder layers to these.

    So no stage consists of an embedding or a head alone: DeepSpeed computes the norm of gradients
    for each group of parameters on all stages together, so each stage needs matrices and norms.
    """
    inner = list(weights[num_before : len(weights) - num_after])
    inner[0] += sum(weights[:num_before])
    inner[-1] += sum(weights[len(weights) - num_after :])
    return inner
