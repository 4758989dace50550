import math

import pytest
import torch

from training.losses.preference import (
    PreferenceMetrics,
    collate_pairs,
    compute_dpo,
    compute_ipo,
    compute_kto,
)
from training.settings.preference_settings import PreferenceSettings

RATIOS = torch.tensor([[1.0, -1.0], [-2.0, 0.0]])


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_dpo_is_the_log_sigmoid_of_the_margin() -> None:
    expected = [-math.log(sigmoid(0.5 * 2)), -math.log(sigmoid(0.5 * -2))]
    assert compute_dpo(RATIOS, 0.5).tolist() == pytest.approx(expected)


def test_ipo_compares_means_per_token_with_a_margin() -> None:
    lengths = torch.tensor([[2, 1], [4, 2]])
    expected = [(0.5 + 1 - 1) ** 2, (-0.5 - 0 - 1) ** 2]
    assert compute_ipo(RATIOS, lengths, 0.5).tolist() == pytest.approx(expected)


def test_kto_weighs_answers_by_their_verdict() -> None:
    settings = PreferenceSettings(loss="kto", beta=0.5, desirable_weight=2, undesirable_weight=3)
    ratios = torch.tensor([[1.0, 3.0], [-2.0, 1.0]])  # a baseline of 2
    expected = [2 * (1 - sigmoid(0.5 * (1 - 2))), 3 * (1 - sigmoid(-0.5 * (-2 - 2)))]
    assert compute_kto(ratios, torch.tensor([1.0, 0.0]), settings).tolist() == pytest.approx(
        expected
    )


def test_an_empty_batch_has_one_row_without_weight() -> None:
    batch = collate_pairs([], learns_prompts=True)
    assert batch.weights.tolist() == [0]
    assert not batch.is_answer.any()


def test_metrics_of_pairs() -> None:
    metrics = PreferenceMetrics(PreferenceSettings(beta=0.5), torch.device("cpu"))
    metrics.add(torch.tensor([[1.0, -1.0, 1.0]]), torch.zeros(1))
    metrics.add(torch.tensor([[-2.0, 0.0, 1.0]]), torch.zeros(1))
    assert metrics.compute() == pytest.approx(
        {"reward_accuracy": 0.5, "reward_margin": 0.0, "kl": 0.5}
    )
