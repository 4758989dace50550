"""Strategies: how a training is spread over workers.

A strategy is one module in `training/strategies/` that defines `STRATEGY`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from training.batching import BatchPlan
    from training.place import Place
    from training.spec import TrainingSpec
    from training.task import Objective


class CheckpointedEngine(Protocol):
    """A model and its optimizer that can be saved; all workers call each method together."""

    def save_checkpoint(self, save_dir: str, tag: str) -> Any:
        """Write the share of this worker in the layout of DeepSpeed."""

    def load_checkpoint(self, load_dir: str, tag: str) -> Any:
        """Load what `save_checkpoint` wrote; returns a tuple that begins with None if nothing."""

    def load_universal_checkpoint(self) -> bool:
        """Return whether the engine expects a universal checkpoint."""


class TrainingEngine(CheckpointedEngine, Protocol):
    """A model in training: the part of DeepSpeed's engine that a training uses.

    Calling it runs a forward pass. Attributes that it lacks are the model's. All workers call each
    method together.
    """

    @property
    def module(self) -> Any:
        """The model."""

    @property
    def optimizer(self) -> Any:
        """The optimizer, with parameter groups."""

    @property
    def global_steps(self) -> int:
        """Optimizer steps taken."""

    @property
    def skipped_steps(self) -> int:
        """Steps that changed no weight, because gradients were not finite."""

    def __call__(self, **inputs: "torch.Tensor") -> Any:
        """Compute the model's outputs."""

    def train(self, mode: bool = True) -> Any:
        """Enable or disable dropout."""

    def eval(self) -> Any:
        """Disable dropout."""

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Tell whether the next backward pass is the last before a step."""

    def backward(self, loss: "torch.Tensor", *, scale_wrt_gas: bool) -> Any:
        """Add the gradients of a loss; they are averaged over the workers before a step."""

    def step(self) -> None:
        """Clip the gradients, take an optimizer step, and forget them."""

    def zero_optimization(self) -> bool:
        """Return whether anything is sharded."""

    def fp16_enabled(self) -> bool:
        """Return whether parameters are fp16."""

    def bfloat16_enabled(self) -> bool:
        """Return whether parameters are bf16."""

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
        *,
        load_universal: bool = False,
    ) -> TrainingEngine:
        """Load the base model on all workers; raises `WeightsError`.

        `load_universal` prepares the engine for a checkpoint that was resharded.
        """

    def is_resharded(self, spec: "TrainingSpec", saved_by: int, place: "Place") -> bool:
        """Return whether a checkpoint of `saved_by` workers must be resharded for this many."""


def find_strategy(name: str) -> Strategy:
    """Return a strategy by its name in a spec."""
    found: Strategy = import_module(f"training.strategies.{name}").STRATEGY
    return found
