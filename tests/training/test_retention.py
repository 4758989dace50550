from dataclasses import dataclass, field
from typing import Any

import pytest

from training.launch import choose_checkpoints, choose_result
from training.spec import TrainingSpec


@dataclass
class Finished:
    """What Ray Train gives back: the checkpoints that it kept, each with its metrics."""

    best_checkpoints: list[tuple[str, dict[str, Any]]] = field(
        default_factory=lambda: [
            ("third", {"step": 30, "loss": 0.5}),
            ("first", {"step": 10, "loss": 0.2}),
            ("second", {"step": 20, "loss": 0.9}),
        ]
    )


@pytest.mark.parametrize(("keep", "chosen"), [("last", "third"), ("best", "first")])
def test_the_checkpoint_that_was_asked_for_becomes_the_model(keep: str, chosen: str) -> None:
    spec = TrainingSpec.model_validate({"base_model": "m", "train_file": "f", "keep": keep})
    assert choose_result(spec, Finished())[0] == chosen


@pytest.mark.parametrize(("keep", "attribute"), [("last", None), ("best", "loss")])
def test_checkpoints_are_kept_by_the_same_choice(keep: str, attribute: str | None) -> None:
    spec = TrainingSpec.model_validate(
        {"base_model": "m", "train_file": "f", "keep": keep, "keep_checkpoints": 3}
    )
    config = choose_checkpoints(spec)
    assert config.num_to_keep == 3
    assert config.checkpoint_score_attribute == attribute
    assert attribute is None or config.checkpoint_score_order == "min"
