"""Restarts of Ray Train; tests/e2e/test_training.py trains."""

from pathlib import Path

import pytest
import ray.exceptions
import ray.train

from training.cluster.ray_train import fit_with_restarts
from training.run.folder import RunFolder


class FailingTrainer:
    """A trainer whose first calls of `fit` fail, each with one of the given errors."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    def fit(self) -> str:
        if self._errors:
            raise ray.train.ControllerError(self._errors.pop(0))
        return "result"


LOST = ray.exceptions.ActorDiedError()


def test_worker_that_ends_at_start_is_replaced(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert fit_with_restarts(FailingTrainer(LOST, LOST), run, max_failures=2) == "result"
    events = run.events.read()
    assert [event["level"] for event in events] == ["warn", "warn"]
    assert all("A worker was lost as it started" in event["message"] for event in events)


@pytest.mark.parametrize(
    ("errors", "max_failures"), [([LOST], 0), ([LOST, LOST], 1), ([ValueError("other")], 3)]
)
def test_repeated_failure_ends_training(
    tmp_path: Path, errors: list[Exception], max_failures: int
) -> None:
    with pytest.raises(ray.train.ControllerError):
        fit_with_restarts(FailingTrainer(*errors), RunFolder(tmp_path), max_failures)
