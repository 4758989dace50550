"""The division of rows into forward passes."""

import itertools

from serving.classification.passes import PASS_TOKENS, plan_passes


def test_passes_have_similar_lengths_and_a_limit() -> None:
    assert plan_passes([10, 4000, 20, 5000, 30]) == [[0, 2, 4], [1], [3]]
    assert plan_passes([30, 10, 31, 10, 10]) == [[1, 3, 4], [0, 2]]
    assert plan_passes([10] * 500) == [list(range(91)), list(range(91, 500))]
    assert plan_passes([]) == []


def test_passes_cost_least() -> None:
    lengths = [3, 90, 14, 15, 40, 16, 41]
    ordered = sorted(lengths)

    def find_cost(ends: tuple[int, ...]) -> int:
        parts = itertools.pairwise((0, *ends, len(lengths)))
        return sum((end - start) * ordered[end - 1] + PASS_TOKENS for start, end in parts)

    places = range(1, len(lengths))
    divisions = (itertools.combinations(places, number) for number in range(len(lengths)))
    least = min(map(find_cost, itertools.chain.from_iterable(divisions)))
    found = plan_passes(lengths)
    padded = [len(batch) * max(lengths[index] for index in batch) for batch in found]
    assert sum(padded) + len(found) * PASS_TOKENS == least
