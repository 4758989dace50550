"""Ray Train's functions for training functions, with `report` and `get_checkpoint` of our own.

`ray.train.report` and `ray.train.get_checkpoint` call an object that Ray Train sets in every
worker. It is replaced while a loop runs, so a loop needs no change. All its other functions are
Ray's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ray.train.v2._internal.execution.train_fn_utils import (
    DistributedTrainFnUtils,
    get_train_fn_utils,
    set_train_fn_utils,
)

from training.own_loop.function import LoopError

if TYPE_CHECKING:
    from training.own_loop.reporter import Reporter


class LoopFunctions(DistributedTrainFnUtils):
    """What Ray Train calls for the functions of `ray.train`, in the worker of a loop."""

    def __init__(self, reporter: "Reporter") -> None:
        self.reporter = reporter

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Any = None,
        checkpoint_dir_name: str | None = None,  # noqa: ARG002 - folders are named by their step
        checkpoint_upload_mode: Any = None,  # noqa: ARG002 - complete when this returns
        delete_local_checkpoint_after_upload: bool | None = None,
        checkpoint_upload_fn: Any = None,
        validation: Any = False,
    ) -> None:
        """Record metrics and save a checkpoint; raises `LoopPausedError` if the run pauses."""
        if checkpoint_upload_fn is not None or validation:
            name = "validation" if validation else "checkpoint_upload_fn"
            raise LoopError(
                f"ray.train.report was called with {name}, which Tuneserve does not support: it "
                "copies checkpoints itself. Remove this argument"
            )
        self.reporter.report(
            metrics, checkpoint, is_moved=bool(delete_local_checkpoint_after_upload)
        )

    def get_checkpoint(self) -> Any:
        """Return the newest complete checkpoint of the run; None before the first."""
        return self.reporter.get_checkpoint()


@contextmanager
def use_reporter(reporter: "Reporter") -> Iterator[None]:
    """Let `ray.train.report` call a reporter during the body."""
    before = get_train_fn_utils()
    set_train_fn_utils(LoopFunctions(reporter))
    try:
        yield
    finally:
        set_train_fn_utils(before)


def find_reporter() -> "Reporter | None":
    """Return the reporter of this worker; None in plain Ray Train, and outside of a worker."""
    try:
        functions = get_train_fn_utils()
    except RuntimeError:
        return None
    return functions.reporter if isinstance(functions, LoopFunctions) else None
