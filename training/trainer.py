"""Ray Train's trainer, without the processes that a fine-tune has no use for."""

from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback

# The first starts a process that hands out Ray Data sets, of which we have none. The second starts
# one that frees the workers' places if Ray Train's controller dies while its job lives on: our job
# ends with its controller, and Ray frees the places of a job that has ended.
UNUSED = frozenset({"DatasetsCallback", "PlacementGroupCleanerCallback"})


class FreeFailedGroup(WorkerGroupCallback, ControllerCallback):
    """Frees the workers' places where a worker ended as it received the training function.

    Ray Train forgets such a group of workers: its controller ends, and the places stay reserved
    until the job has ended, so that a second controller of the job would wait for them for ever.
    """

    def __init__(self) -> None:
        self._starting: Any = None

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Remember the group; the training function is handed over next."""
        self._starting = worker_group

    def after_worker_group_training_start(self, worker_group: Any) -> None:  # noqa: ARG002 - Ray's
        """Leave the group to Ray Train."""
        self._starting = None

    async def before_controller_shutdown(self) -> None:
        """Shut down a group that never began to train."""
        if self._starting is not None and self._starting.has_started():
            self._starting.shutdown()


class LeanTorchTrainer(TorchTrainer):
    """A `TorchTrainer` whose workers are up about 3 s sooner on two cores.

    What it overrides is not public. Where Ray renames it, everything still works and those
    processes are back; a test tells.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()  # type: ignore[misc]
        used = [callback for callback in callbacks if type(callback).__name__ not in UNUSED]
        return [*used, FreeFailedGroup()]
