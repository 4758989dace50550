"""Strategies: how a training is spread over workers.

A strategy is one module in `training/strategies/` that defines `STRATEGY`.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from training.batching import BatchPlan
    from training.checkpoint.format import Checkpoint
    from training.engine import StepBatches
    from training.place import Place
    from training.spec import TrainingSpec
    from training.task import Metrics, Objective


class CheckpointedEngine(Protocol):
    """A model and its optimizer that can be saved; all workers call each method together."""

    def save_checkpoint(self, save_dir: str, tag: str) -> Any:
        """Write the share of this worker in the layout of DeepSpeed."""

    def load_checkpoint(self, load_dir: str, tag: str) -> Any:
        """Load what `save_checkpoint` wrote; returns a tuple that begins with None if nothing."""

    def load_universal_checkpoint(self) -> bool:
        """Return whether the engine expects a universal checkpoint."""


class TrainingEngine(CheckpointedEngine, Protocol):
    """A model in training. All workers call each method together."""

    @property
    def module(self) -> Any:
        """The model, or the part of it that this worker has; its parameters have their names."""

    @property
    def optimizer(self) -> Any:
        """The optimizer, with parameter groups."""

    @property
    def global_steps(self) -> int:
        """Optimizer steps taken."""

    @property
    def skipped_steps(self) -> int:
        """Steps that changed no weight, because gradients were not finite."""

    def list_parameters(self) -> "Iterable[tuple[str, torch.Size]]":
        """Return the parameters of the whole model with their shapes, in the same order everywhere.

        A shared parameter occurs once.
        """

    def add_gradients(
        self, batches: "StepBatches", place: "Place", weight: float
    ) -> "torch.Tensor":
        """Add the gradients of a step's loss, summed over its targets and divided by `weight`.

        Returns the sum of the losses that this worker computed, of shape `[]`, in fp64: the sum
        over all workers is that of the step.
        """

    def compute_loss(
        self, batches: "StepBatches", place: "Place", metrics: "Metrics | None"
    ) -> "torch.Tensor":
        """Compute losses without gradients; returns a sum as `add_gradients` does.

        Adds the predictions to `metrics`.
        """

    def compute_logits(self, inputs: "Mapping[str, torch.Tensor]") -> "torch.Tensor":
        """Compute the logits of the same inputs on every worker."""

    def train(self, mode: bool = True) -> Any:
        """Enable or disable dropout."""

    def eval(self) -> Any:
        """Disable dropout."""

    def step(self) -> None:
        """Clip the gradients, take an optimizer step, and forget them."""

    def measure_norm(self) -> "torch.Tensor | None":
        """Return the norm of the gradients; None if the engine measures it as it steps."""

    def get_global_grad_norm(self) -> Any:
        """Return the norm of the last step's gradients before clipping."""

    def destroy(self) -> None:
        """Free the memory of the optimizer and its hooks."""


class Strategy(Protocol):
    """How a training is spread over workers."""

    def prepare_process(self, device: "torch.device") -> None:
        """Set up what the strategy needs in the process group that Ray Train has created."""

    def start_engine(
        self,
        spec: "TrainingSpec",
        place: "Place",
        plan: "BatchPlan",
        objective: "Objective",
        start: "Checkpoint | None" = None,
    ) -> TrainingEngine:
        """Load the base model on all workers, and prepare to load the checkpoint `start`.

        Raises `WeightsError`, and `CheckpointError` if `start` cannot be loaded by these workers.
        """


def find_strategy(name: str) -> Strategy:
    """Return a strategy by its name in a spec."""
    found: Strategy = import_module(f"training.strategies.{name}").STRATEGY
    return found
