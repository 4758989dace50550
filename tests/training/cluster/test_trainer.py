import inspect
from typing import Any

import pytest
from ray.train import FailureConfig, RunConfig
from ray.train.torch import TorchTrainer

from training.cluster.trainer import UNUSED, LeanTorchTrainer, RetryTransientFailures


def name_callbacks(trainer: TorchTrainer) -> list[str]:
    callbacks: list[Any] = trainer._create_default_callbacks()  # type: ignore[attr-defined]
    return [type(callback).__name__ for callback in callbacks]


def test_lean_trainer_omits_only_unused_callbacks() -> None:
    everything = name_callbacks(TorchTrainer(lambda: None))
    assert set(everything) > UNUSED
    kept = [name for name in everything if name not in UNUSED]
    assert name_callbacks(LeanTorchTrainer(lambda: None)) == [*kept, "FreeFailedGroup"]


def test_controller_receives_failure_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray Train's own policy retries every exception of a worker."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        TorchTrainer, "_initialize_and_run_controller", lambda _, **settings: given.update(settings)
    )
    trainer = LeanTorchTrainer(
        lambda: None, run_config=RunConfig(failure_config=FailureConfig(max_failures=4))
    )
    trainer._initialize_and_run_controller(failure_policy=None, callbacks=[])
    policy = given["failure_policy"]
    assert isinstance(policy, RetryTransientFailures)
    assert policy.failure_config.max_failures == 4
    assert "failure_policy=create_failure_policy(" in inspect.getsource(TorchTrainer.fit)
