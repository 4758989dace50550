from typing import Any

from ray.train.torch import TorchTrainer

from training.trainer import UNUSED, LeanTorchTrainer


def name_callbacks(trainer: TorchTrainer) -> list[str]:
    callbacks: list[Any] = trainer._create_default_callbacks()  # type: ignore[attr-defined]
    return [type(callback).__name__ for callback in callbacks]


def test_only_what_is_not_used_is_left_out() -> None:
    everything = name_callbacks(TorchTrainer(lambda: None))
    assert set(everything) > UNUSED
    kept = [name for name in everything if name not in UNUSED]
    assert name_callbacks(LeanTorchTrainer(lambda: None)) == [*kept, "FreeFailedGroup"]
