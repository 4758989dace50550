import inspect
from typing import Any

import pytest
from ray.train.v2._internal.execution import train_fn_utils
from ray.train.v2.api import train_fn_utils as api_functions

from training.own_loop.api import log_event, should_stop
from training.own_loop.function import LoopError
from training.own_loop.train_functions import LoopFunctions, find_reporter, use_reporter


class NotedReports:
    """A reporter that notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def report(self, metrics: Any, checkpoint: Any, *, is_moved: bool) -> None:
        self.calls.append((metrics, checkpoint, is_moved))

    def get_checkpoint(self) -> str:
        return "newest"

    def should_stop(self) -> bool:
        return True

    def log_event(self, message: str) -> None:
        self.calls.append(message)


@pytest.fixture
def reporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(train_fn_utils, "_train_fn_utils", train_fn_utils.DistributedTrainFnUtils())
    return NotedReports()


def test_functions_of_ray_train_reach_the_reporter(reporter: Any) -> None:
    calls: list[Any] = reporter.calls
    with use_reporter(reporter):
        functions: Any = train_fn_utils.get_train_fn_utils()
        functions.report({"loss": 1.0}, "checkpoint", delete_local_checkpoint_after_upload=True)
        assert functions.get_checkpoint() == "newest"
        assert should_stop()
        log_event("halfway")
        assert find_reporter() is reporter
    assert calls == [({"loss": 1.0}, "checkpoint", True), "halfway"]
    assert find_reporter() is None
    assert not should_stop()
    log_event("in plain Ray Train")
    assert len(calls) == 2


@pytest.mark.parametrize("argument", ["validation", "checkpoint_upload_fn"])
def test_arguments_without_effect_are_refused(reporter: Any, argument: str) -> None:
    given: dict[str, Any] = {argument: True}
    with pytest.raises(LoopError, match=f"was called with {argument}, which Tuneserve does not"):
        LoopFunctions(reporter).report({}, **given)
    assert reporter.calls == []


def test_ray_train_still_calls_what_is_replaced() -> None:
    ours = inspect.signature(LoopFunctions.report).parameters
    theirs = inspect.signature(train_fn_utils.DistributedTrainFnUtils.report).parameters
    assert list(ours) == list(theirs)
    for name in ("report", "get_checkpoint"):
        source = inspect.getsource(getattr(api_functions, name))
        assert f"get_train_fn_utils().{name}(" in source
