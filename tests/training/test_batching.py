import random
from collections import Counter

import pytest
import torch

from training.batching import IGNORED_LABEL, BatchLimits, collate_rows, plan_epoch

LENGTHS = [random.Random(7).randint(3, 100) for _ in range(211)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("limits", [BatchLimits(256), BatchLimits(256, 3)])
def test_every_row_is_seen_exactly_once(
    world_size: int, accumulation: int, limits: BatchLimits
) -> None:
    plan = plan_epoch(
        LENGTHS, limits, world_size=world_size, accumulation=accumulation, seed=1, epoch=0
    )
    assert Counter(row for step in plan for row in step.rows) == Counter(range(len(LENGTHS)))
    for step in plan:
        assert 1 <= len(step.micro_batches) <= accumulation
        for shares in step.micro_batches:
            assert len(shares) == world_size
            for rows in filter(None, shares):
                assert limits.admits(len(rows), max(LENGTHS[row] for row in rows))


def test_fewer_rows_than_workers_leave_empty_shares() -> None:
    (step,) = plan_epoch([5], BatchLimits(64), world_size=4, accumulation=2, seed=0, epoch=0)
    assert step.micro_batches == (((0,), (), (), ()),)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def plan(seed: int, epoch: int) -> object:
        return plan_epoch(
            LENGTHS, BatchLimits(256), world_size=2, accumulation=1, seed=seed, epoch=epoch
        )

    assert plan(1, 0) == plan(1, 0)
    assert plan(1, 0) != plan(1, 1)
    assert plan(1, 0) != plan(2, 0)


def test_rows_of_similar_length_share_a_micro_batch() -> None:
    plan = plan_epoch(LENGTHS, BatchLimits(512), world_size=1, accumulation=1, seed=0, epoch=0)
    padded = sum(
        len(rows) * max(LENGTHS[row] for row in rows)
        for step in plan
        for shares in step.micro_batches
        for rows in shares
    )
    assert padded < 1.1 * sum(LENGTHS)


def test_a_row_that_fits_no_micro_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="a row has 300 tokens, more than micro_batch_tokens 256"):
        plan_epoch([300], BatchLimits(256), world_size=1, accumulation=1, seed=0, epoch=0)


def test_padding_is_neither_attended_to_nor_learned() -> None:
    batch = collate_rows([([5, 6, 7], [False, True, True]), ([8], [True])])
    assert batch.input_ids.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.labels.tolist() == [[IGNORED_LABEL, 6, 7], [8, IGNORED_LABEL, IGNORED_LABEL]]


def test_an_empty_share_has_something_to_compute_and_nothing_to_learn() -> None:
    batch = collate_rows([])
    assert batch.input_ids.shape == (1, 1)
    assert bool((batch.labels == IGNORED_LABEL).all())
    assert torch.equal(batch.attention_mask, torch.ones(1, 1, dtype=torch.long))
