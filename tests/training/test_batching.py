import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from training.batching import (
    BatchLayout,
    BatchPlan,
    EpochPlan,
    Lengths,
    choose_windows,
    count_steps,
    plan_epoch,
    plan_evaluation,
    plan_window,
)
from training.spec import TrainingSpec

PLAN = BatchPlan("padded", num_tokens=256, num_rows=None, num_shares=2, accumulation=1, seed=0)
LAYOUTS: tuple[BatchLayout, ...] = ("padded", "flattened", "packed")


def make_lengths(num_rows: int, longest: int = 100, seed: int = 7) -> Lengths:
    return np.random.default_rng(seed).integers(3, longest + 1, num_rows).astype(np.int32)


LENGTHS = make_lengths(211)


def iterate_plans() -> Iterator[BatchPlan]:
    for layout, num_rows, num_shares, accumulation in product(
        LAYOUTS, (None, 3), (1, 2, 3, 8), (1, 4)
    ):
        yield BatchPlan(layout, 256, num_rows, num_shares, accumulation, seed=1)


def list_micro_batches(steps: EpochPlan) -> list[tuple[int, ...]]:
    return [rows for step in steps for rows in step.micro_batches]


def find_oversized(steps: EpochPlan, plan: BatchPlan, lengths: Lengths) -> list[list[int]]:
    """Return the row lengths of the micro batches that the plan does not admit."""
    tokens = [lengths[list(rows)].tolist() for rows in list_micro_batches(steps)]
    return [of for of in tokens if not plan.admits(len(of), sum(of), max(of))]


@pytest.mark.parametrize("plan", iterate_plans(), ids=str)
def test_each_row_is_used_once_per_epoch(plan: BatchPlan) -> None:
    for epoch in range(3):
        steps = plan_epoch(LENGTHS, plan, epoch)
        assert Counter(row for step in steps for row in step.rows) == Counter(range(len(LENGTHS)))
        full = plan.num_shares * plan.accumulation
        assert [len(step.micro_batches) for step in list(steps)[:-1]].count(full) >= len(steps) - 2
        assert all(1 <= len(step.micro_batches) <= full for step in steps)
        assert all(list_micro_batches(steps))


@pytest.mark.parametrize("plan", iterate_plans(), ids=str)
def test_micro_batches_respect_limits(plan: BatchPlan) -> None:
    for num_rows, seed in product((1, 5, 40, 211), range(10)):
        lengths = make_lengths(num_rows, longest=256, seed=seed)
        steps = plan_epoch(lengths, replace(plan, seed=seed), 0)
        assert find_oversized(steps, plan, lengths) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_remaining_rows_are_distributed_within_limits(layout: BatchLayout) -> None:
    """With one long row and many short ones, a share of the last round still fits a micro batch."""
    lengths = np.array([100] * 2 + [2] * 60, dtype=np.int32)
    for num_shares, seed in product((3, 4, 8), range(20)):
        plan = BatchPlan(layout, 100, None, num_shares, accumulation=1, seed=seed)
        assert find_oversized(plan_epoch(lengths, plan, 0), plan, lengths) == []


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_step_is_divided_evenly_and_completely(world_size: int) -> None:
    for plan in iterate_plans():
        for step in plan_epoch(LENGTHS, plan, 0):
            selected = [step.select_micro_batches(rank, world_size) for rank in range(world_size)]
            assert {len(of) for of in selected} == {-(-len(step.micro_batches) // world_size)}
            micro_batches = [rows for of in selected for rows in of if rows]
            assert sorted(micro_batches) == sorted(step.micro_batches)


def test_micro_batches_of_round_have_similar_length() -> None:
    plan = replace(PLAN, num_shares=4, num_rows=4)
    rounds = [
        [LENGTHS[list(rows)].max() for rows in step.micro_batches]
        for step in plan_epoch(LENGTHS, plan, 0)
    ]
    spread = [max(of) - min(of) for of in rounds[:-1]]
    assert np.mean(spread) < 0.2 * LENGTHS.max()


def test_order_depends_only_on_seed_and_epoch() -> None:
    def list_steps(seed: int, epoch: int) -> list[object]:
        return list(plan_epoch(LENGTHS, replace(PLAN, seed=seed), epoch))

    assert list_steps(1, 0) == list_steps(1, 0)
    others = [list_steps(1, 1), list_steps(2, 0), list_steps(0, 1), list_steps(0, 2)]
    assert all(list_steps(1, 0) != other for other in others)
    assert list_steps(0, 1) != list_steps(1, 0)


def test_epoch_is_not_sorted_by_length() -> None:
    lengths = make_lengths(5000)
    steps = plan_epoch(lengths, PLAN, 0)
    means = [lengths[list(step.rows)].mean() for step in steps]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.2


def test_fingerprint_depends_on_order() -> None:
    def compute(plan: BatchPlan, lengths: Lengths = LENGTHS, epoch: int = 0) -> str:
        return plan_epoch(lengths, plan, epoch).compute_fingerprint()

    changed = LENGTHS.copy()
    changed[:20] = changed[:20][::-1]
    found = [
        compute(PLAN),
        compute(PLAN, epoch=1),
        compute(PLAN, lengths=changed),
        compute(PLAN, lengths=LENGTHS[:-1]),
        compute(replace(PLAN, seed=1)),
        compute(replace(PLAN, num_tokens=128)),
        compute(replace(PLAN, num_rows=2)),
        compute(replace(PLAN, num_shares=3)),
        compute(replace(PLAN, layout="flattened")),
        compute(replace(PLAN, layout="packed")),
    ]
    assert len(set(found)) == len(found)
    assert compute(PLAN, lengths=LENGTHS.copy()) == found[0]


def test_order_of_stored_runs_is_kept() -> None:
    """A run that resumes needs the order that an earlier version began, in each layout."""
    found = {
        layout: plan_epoch(LENGTHS, replace(PLAN, layout=layout), 1).compute_fingerprint()[:16]
        for layout in LAYOUTS
    }
    assert found == {
        "padded": "e420fb7ad4308476",
        "flattened": "51323b09e0a47700",
        "packed": "c77112935007de39",
    }


def test_fingerprint_depends_on_micro_batch_bounds() -> None:
    rows = np.arange(6)
    found = {
        EpochPlan(rows, np.array(bounds), 1).compute_fingerprint()
        for bounds in ([0, 3, 6], [0, 2, 6], [0, 2, 4, 6])
    }
    assert len(found) == 3


def test_plan_is_independent_of_number_of_workers() -> None:
    spec = TrainingSpec(
        base_model="m",
        train_file="f",
        micro_batch_tokens=256,
        micro_batch_size=3,
        gradient_accumulation_steps=4,
        seed=5,
        num_workers=2,
    )
    expected = BatchPlan("padded", 256, 3, num_shares=2, accumulation=4, seed=5)
    assert BatchPlan.from_spec(spec, "padded", num_shares=2) == expected
    shrunk = spec.model_copy(update={"num_workers": 1})
    assert BatchPlan.from_spec(shrunk, "padded", num_shares=2) == expected


def test_rows_of_similar_length_share_micro_batch() -> None:
    lengths = make_lengths(2000)
    for num_rows in (None, 4):
        plan = replace(PLAN, num_tokens=512, num_rows=num_rows)
        of_batches = [
            lengths[list(rows)] for rows in list_micro_batches(plan_epoch(lengths, plan, 0))
        ]
        padded = sum(len(of) * int(of.max()) for of in of_batches)
        assert padded < 1.1 * lengths.sum()


def test_micro_batches_of_concatenated_rows_are_nearly_full() -> None:
    lengths = make_lengths(2000, longest=40)
    plans = (replace(PLAN, layout="flattened"), 0.88), (replace(PLAN, layout="packed"), 0.99)
    for plan, least in plans:
        steps = plan_epoch(lengths, plan, 0)
        sizes = [int(lengths[list(rows)].sum()) for rows in list_micro_batches(steps)]
        assert np.mean(sizes) > least * plan.num_tokens


@pytest.mark.parametrize("num_rows", [4, 8, 12, 16, 32])
def test_row_limit_does_not_add_packed_micro_batches(num_rows: int) -> None:
    lengths = make_lengths(2000, longest=60)
    counts = [
        len(list_micro_batches(plan_epoch(lengths, replace(PLAN, layout=of, num_rows=num_rows), 0)))
        for of in ("packed", "flattened", "padded")
    ]
    assert counts[0] <= min(counts)


@pytest.mark.parametrize("num_rows", [None, 4, 8])
def test_workers_have_similar_numbers_of_tokens_in_packed_rounds(num_rows: int | None) -> None:
    lengths = make_lengths(2000, longest=60)
    plan = replace(PLAN, layout="packed", num_rows=num_rows)
    rounds = [
        [int(lengths[list(rows)].sum()) for rows in step.micro_batches]
        for step in plan_epoch(lengths, plan, 0)
    ]
    waits = [max(tokens) / np.mean(tokens) for tokens in rounds]
    assert np.mean(waits) < 1.03


@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_longer_than_micro_batch_is_rejected(layout: BatchLayout) -> None:
    with pytest.raises(
        ValueError,
        match="^a row has 300 tokens, more than micro_batch_tokens 256; raise micro_batch_tokens "
        "or lower max_length$",
    ):
        plan_epoch(np.array([9, 300], dtype=np.int32), replace(PLAN, layout=layout), 0)
    assert len(plan_epoch(np.array([256], dtype=np.int32), replace(PLAN, layout=layout), 0)) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fewer_rows_than_shares_are_distributed_one_by_one(layout: BatchLayout) -> None:
    plan = replace(PLAN, layout=layout, num_shares=8, accumulation=2)
    for num_rows in (1, 3, 7):
        (step,) = plan_epoch(make_lengths(num_rows), plan, 0)
        assert sorted(step.micro_batches) == [(row,) for row in range(num_rows)]
        assert [len(step.select_micro_batches(rank, 8)) for rank in range(8)] == [1] * 8


def test_number_of_steps_is_limited_by_epochs_and_max_steps() -> None:
    one = [len(plan_epoch(LENGTHS, PLAN, epoch)) for epoch in range(3)]
    assert count_steps(LENGTHS, PLAN, 3, None) == sum(one)
    assert count_steps(LENGTHS, PLAN, 3, sum(one) + 1) == sum(one)
    for max_steps in (1, one[0], one[0] + 1, sum(one)):
        assert count_steps(LENGTHS, PLAN, 3, max_steps) == max_steps
    assert count_steps(LENGTHS, PLAN, 1000, 5) == 5  # without planning 1000 epochs


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_rows", [None, 3])
def test_no_rows_produce_no_steps(layout: BatchLayout, num_rows: int | None) -> None:
    plan = replace(PLAN, layout=layout, num_rows=num_rows)
    assert len(plan_epoch(np.zeros(0, dtype=np.int32), plan, 0)) == 0
    assert list(plan_evaluation(np.zeros(0, dtype=np.int32), plan)) == []


def test_step_is_accessible_by_index() -> None:
    steps = plan_epoch(LENGTHS, PLAN, 0)
    assert steps[len(steps) - 1] == list(steps)[-1]
    for index in (-1, len(steps)):
        with pytest.raises(IndexError):
            steps[index]


@pytest.mark.parametrize("plan", iterate_plans(), ids=str)
def test_evaluation_uses_each_row_once(plan: BatchPlan) -> None:
    rounds = plan_evaluation(LENGTHS, plan)
    assert sorted(row for step in rounds for row in step.rows) == list(range(len(LENGTHS)))
    assert find_oversized(rounds, plan, LENGTHS) == []
    most = plan.num_shares * plan.accumulation
    assert all(len(step.micro_batches) <= most for step in rounds)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_epoch_is_planned_fast_in_little_memory(layout: BatchLayout) -> None:
    lengths = make_lengths(300_000, longest=512)
    plan = BatchPlan(layout, 8192, None, num_shares=4, accumulation=2, seed=0)
    began = time.perf_counter()
    steps = plan_epoch(lengths, plan, 0)
    assert time.perf_counter() - began < 5
    held = sum(array.nbytes for array in vars(steps).values() if isinstance(array, np.ndarray))
    assert 8 * len(lengths) <= held < 8.5 * len(lengths)


WINDOWED = [replace(plan, window=1500) for plan in iterate_plans()]


@pytest.mark.parametrize("plan", WINDOWED, ids=str)
def test_windows_of_an_epoch_are_planned_alone_and_have_each_row_once(plan: BatchPlan) -> None:
    orders = set()
    for epoch in range(3):
        steps = plan_epoch(LENGTHS, plan, epoch)
        assert Counter(row for step in steps for row in step.rows) == Counter(range(len(LENGTHS)))
        windows = choose_windows(LENGTHS, plan, epoch)
        alone = [
            plan_window(rows, LENGTHS, plan, epoch, place) for place, rows in enumerate(windows)
        ]
        assert [step for window in alone for step in window] == list(steps)
        places = [steps.locate(index) for index in range(len(steps) + 1)]
        expected = [(place, step) for place, one in enumerate(alone) for step in range(len(one))]
        assert places == [*expected, (len(windows), 0)]
        assert 1 < len(windows) == len(choose_windows(LENGTHS, plan, 0))
        assert all(LENGTHS[rows].sum() <= 1500 + 16 * LENGTHS.max() for rows in windows)
        orders.add(steps.compute_fingerprint())
    assert len(orders) == 3


@pytest.mark.parametrize("plan", iterate_plans(), ids=str)
def test_window_of_all_rows_changes_nothing(plan: BatchPlan) -> None:
    windowed = replace(plan, window=int(LENGTHS.sum()))
    for epoch in range(2):
        assert list(plan_epoch(LENGTHS, windowed, epoch)) == list(plan_epoch(LENGTHS, plan, epoch))
        fingerprints = {
            plan_epoch(LENGTHS, one, epoch).compute_fingerprint() for one in (plan, windowed)
        }
        assert len(fingerprints) == 1
    assert list(plan_evaluation(LENGTHS, windowed)) == list(plan_evaluation(LENGTHS, plan))


@pytest.mark.parametrize("plan", WINDOWED, ids=str)
def test_evaluation_in_windows_has_each_row_once(plan: BatchPlan) -> None:
    steps = plan_evaluation(LENGTHS, plan)
    assert sorted(row for step in steps for row in step.rows) == list(range(len(LENGTHS)))
    assert steps.locate(len(steps)).window > 1


def test_streamed_rows_have_a_window_by_default() -> None:
    settings = {"base_model": "-", "train_file": "-", "micro_batch_tokens": 1024}
    local = TrainingSpec.model_validate(settings)
    assert BatchPlan.from_spec(local, "padded", 2).window is None
    streamed = TrainingSpec.model_validate({**settings, "data_engine": "ray"})
    assert BatchPlan.from_spec(streamed, "padded", 2).window == 1 << 20
    assert BatchPlan.from_spec(streamed, "padded", 1024).window == 8 << 20
    chosen = TrainingSpec.model_validate({**settings, "shuffle_window": 5000})
    assert BatchPlan.from_spec(chosen, "padded", 2).window == 5000
