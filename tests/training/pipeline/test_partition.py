from itertools import combinations, pairwise

import numpy as np
import pytest

from training.pipeline.partition import choose_bounds, merge_ends


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_heaviest_stage_is_as_light_as_possible(num_stages: int) -> None:
    weights = [int(one) for one in np.random.default_rng(num_stages).integers(1, 50, 9)]

    def measure(bounds: tuple[int, ...] | list[int]) -> float:
        return max(sum(weights[first:end]) for first, end in pairwise(bounds))

    bounds = choose_bounds(weights, num_stages)
    inner = combinations(range(1, len(weights)), num_stages - 1)
    assert measure(bounds) == min(measure((0, *cut, len(weights))) for cut in inner)
    assert len(bounds) == num_stages + 1


def test_every_stage_has_a_layer() -> None:
    assert choose_bounds([1, 1, 1], 3) == [0, 1, 2, 3]
    assert choose_bounds([0, 0, 9], 3) == [0, 1, 2, 3]


def test_ends_count_for_the_nearest_decoder_layers() -> None:
    assert merge_ends([7, 2, 1, 1, 1, 3, 4], 2, 2) == [10, 1, 8]
    assert merge_ends([7, 1, 3, 4], 1, 2) == [15]
