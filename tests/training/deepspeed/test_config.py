"""The DeepSpeed configuration that a spec gives without one of the user's."""

import pytest

from training.deepspeed.config import build_deepspeed_config
from training.spec import TrainingSpec


@pytest.mark.parametrize(
    ("hidden_size", "expected"),
    [(100, 120_000), (512, 3_145_728), (2048, 50_000_000), (4096, 50_000_000)],
)
def test_about_a_layer_is_gathered_ahead_and_no_more_than_by_default(
    hidden_size: int, expected: int
) -> None:
    spec = TrainingSpec(base_model="m", train_file="f", zero_stage=3)
    zero = build_deepspeed_config(spec, 2, hidden_size=hidden_size)["zero_optimization"]
    assert zero["stage3_prefetch_bucket_size"] == expected
    spec = TrainingSpec(base_model="m", train_file="f", zero_stage=2)
    zero = build_deepspeed_config(spec, 2, hidden_size=hidden_size)["zero_optimization"]
    assert "stage3_prefetch_bucket_size" not in zero
