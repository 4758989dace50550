"""The strategy of PyTorch's DistributedDataParallel: every worker has the whole model.

Weights, gradients and optimizer state are fp32; in bf16, autocast computes the forward pass. Ray
Train's `prepare_model` moves the model to its device and wraps it.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.batching import BatchPlan
from training.checkpoint.format import Checkpoint, CheckpointError
from training.deepspeed.optimizer import build_optimizer
from training.export.zero_shards import WHOLE_STATES
from training.model import load_model
from training.place import Place
from training.spec import TrainingSpec
from training.strategies.data_parallel import DataParallelEngine
from training.strategy import TrainingEngine
from training.task import Objective


class DdpEngine(DataParallelEngine):
    """A replicated model with its optimizer, behind the interface of DeepSpeed's engine.

    With `has_unused_parameters`, some parameters may get no gradient.
    """

    skipped_steps = 0

    def __init__(
        self,
        model: torch.nn.Module,
        spec: TrainingSpec,
        place: Place,
        *,
        has_unused_parameters: bool,
    ) -> None:
        from ray.train.torch import prepare_model

        self._wrapped: Any = prepare_model(
            model,
            move_to_device=place.device,
            parallel_strategy_kwargs={"find_unused_parameters": has_unused_parameters},
        )
        self._is_wrapped = hasattr(self._wrapped, "require_backward_grad_sync")
        self.module: Any = self._wrapped.module if self._is_wrapped else self._wrapped
        self.optimizer = build_optimizer(model, spec)
        self.global_steps = 0
        self._place = place
        self._computes_bf16 = spec.precision == "bf16"
        self._max_norm = spec.max_grad_norm
        self._norm = torch.zeros(())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["module"], name)

    def __call__(self, **inputs: torch.Tensor) -> Any:
        """Compute the model's outputs."""
        device = self._place.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._computes_bf16):
            return self._wrapped(**inputs)

    def train(self, mode: bool = True) -> None:
        """Enable or disable dropout."""
        self._wrapped.train(mode)

    def eval(self) -> None:
        """Disable dropout."""
        self._wrapped.eval()

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Average gradients in the next backward pass only if it is the last before a step."""
        if self._is_wrapped:  # what `no_sync` sets, but for a forward and a backward pass
            self._wrapped.require_backward_grad_sync = is_boundary

    def backward(self, loss: torch.Tensor, *, scale_wrt_gas: bool) -> None:  # noqa: ARG002 - DeepSpeed's
        """Add the gradients of a loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """Clip the gradients, take an optimizer step, and forget them."""
        self._norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_steps += 1

    def load_universal_checkpoint(self) -> bool:
        """Return False: a checkpoint is the same for any number of workers."""
        return False

    def get_global_grad_norm(self) -> float:
        """Return the norm of the last step's gradients before clipping."""
        return float(self._norm)

    def save_checkpoint(self, save_dir: str, tag: str) -> None:
        """Write the model and the optimizer on rank 0, in DeepSpeed's layout of a whole module."""
        if self._place.rank == 0:
            folder = Path(save_dir) / tag
            folder.mkdir(parents=True)
            states = {
                "module": self.module.state_dict(),
                "buffer_names": [name for name, _ in self.module.named_buffers()],
                "param_shapes": [
                    {
                        name: one.shape
                        for name, one in self.module.named_parameters()
                        if one.requires_grad
                    }
                ],
                "optimizer": self.optimizer.state_dict(),
                "global_steps": self.global_steps,
            }
            torch.save(states, folder / WHOLE_STATES)
            (Path(save_dir) / "latest").write_text(tag)
        dist.barrier()

    def load_checkpoint(self, load_dir: str, tag: str) -> tuple[str | None, dict[str, Any]]:
        """Load the model and the optimizer that rank 0 wrote; raises `CheckpointError`."""
        file = Path(load_dir) / tag / WHOLE_STATES
        if not file.is_file():
            return None, {}
        states = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        report = self.module.load_state_dict(states["module"], strict=False)
        expected = self.module.state_dict()  # without the frozen weights under an adapter
        missing = [name for name in report.missing_keys if name in expected]
        if faulty := [*report.unexpected_keys, *missing]:
            raise CheckpointError(
                f"the checkpoint {Path(load_dir).name!r} has other weights than the model: "
                f"{sorted(faulty)[:10]}"
            )
        self.optimizer.load_state_dict(states["optimizer"])
        self.global_steps = int(states["global_steps"])
        return str(file), {}

    def destroy(self) -> None:
        """Free nothing: the memory is free with the engine."""


class DdpStrategy:
    """Every worker has the whole model, and computes its share of the rows."""

    def prepare_process(self, device: torch.device) -> None:
        """Set up nothing: Ray Train's process group is enough."""

    def start_engine(
        self,
        spec: TrainingSpec,
        place: Place,
        plan: BatchPlan,
        objective: Objective,
        start: Checkpoint | None = None,
    ) -> TrainingEngine:
        """Load the base model in fp32 on every worker.

        A checkpoint is the same for any number of workers.
        """
        model = load_model(
            spec,
            objective,
            plan.layout,
            place.device,
            dtype=torch.float32,
            is_resumed=start is not None,
        )
        # A class with a head may have parameters of its base model that the head does not use.
        return DdpEngine(model, spec, place, has_unused_parameters=objective.task.adds_head)


STRATEGY = DdpStrategy()
