"""The strategy of DeepSpeed: optimizer state, gradients and weights sharded over the workers.

Rajbhandari et al. 2020, arXiv 1910.02054; `zero_stage` says what is sharded.
"""

import logging
from typing import Any

import torch

from training.batching import BatchPlan
from training.checkpoint.format import Checkpoint
from training.deepspeed.config import build_deepspeed_config
from training.deepspeed.optimizer import build_optimizer
from training.deepspeed.process import prepare_deepspeed
from training.model import find_hidden_size, find_unfit_head, load_model
from training.place import Place
from training.spec import TrainingSpec
from training.strategies.data_parallel import DataParallelEngine
from training.strategy import TrainingEngine
from training.task import Objective


class ZeroEngine(DataParallelEngine):
    """DeepSpeed's engine, with the passes of a step.

    With an adapter, only its parameters are in checkpoints.
    """

    def __init__(self, engine: Any, *, has_adapter: bool) -> None:
        self._engine = engine
        self._has_adapter = has_adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_engine"], name)

    def __call__(self, **inputs: torch.Tensor) -> Any:
        """Compute the model's outputs."""
        return self._engine(**inputs)

    def save_checkpoint(self, save_dir: str, tag: str) -> None:
        """Write the share of this worker."""
        self._engine.save_checkpoint(save_dir, tag=tag, exclude_frozen_parameters=self._has_adapter)

    def load_checkpoint(self, load_dir: str, tag: str) -> Any:
        """Load what `save_checkpoint` wrote; returns a tuple that begins with None if nothing."""
        return self._engine.load_checkpoint(
            load_dir, tag=tag, load_module_strict=not self._has_adapter
        )

    def measure_norm(self) -> torch.Tensor | None:
        """Return the norm of fp32 gradients at stage 0, which alone DeepSpeed does not measure."""
        engine = self._engine
        if engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled():
            return None
        return super().measure_norm()

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Tell whether the next backward pass is the last before a step."""
        self._engine.set_gradient_accumulation_boundary(is_boundary)

    def backward(self, loss: torch.Tensor, *, scale_wrt_gas: bool) -> None:
        """Add the gradients of a loss; they are averaged over the workers before a step."""
        self._engine.backward(loss, scale_wrt_gas=scale_wrt_gas)


class ZeroStrategy:
    """Every worker computes the whole model, of which it stores a share."""

    def prepare_process(self, device: torch.device) -> None:
        """Set up DeepSpeed's collectives in the process group that Ray Train created."""
        prepare_deepspeed(device)

    def start_engine(
        self,
        spec: TrainingSpec,
        place: Place,
        plan: BatchPlan,
        objective: Objective,
        start: Checkpoint | None = None,
    ) -> TrainingEngine:
        """Load the base model, sharded during loading, and wrap it in DeepSpeed's engine.

        A checkpoint of another number of workers is loaded as a universal one.
        """
        import deepspeed
        from transformers.integrations import HfDeepSpeedConfig

        if spec.wall_clock_breakdown:  # else its lines would not reach the log
            deepspeed.utils.logger.setLevel(logging.INFO)
            deepspeed.utils.logger.propagate = True
        config = build_deepspeed_config(
            spec,
            place.world_size,
            hidden_size=find_hidden_size(spec.base_model),
            num_shares=plan.num_shares,
            load_universal=start is not None and _is_resharded(spec, start, place),
        )
        unfit_head = find_unfit_head(spec, objective)
        shards_on_load = HfDeepSpeedConfig(config)  # must live across from_pretrained
        model = load_model(
            spec, objective, plan.layout, place.device, unfit_head, is_resumed=start is not None
        )
        del shards_on_load
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=build_optimizer(model, spec), config=config
        )
        wrapped: Any = ZeroEngine(
            engine, has_adapter=spec.adapter is not None
        )  # most of what it has is DeepSpeed's
        return wrapped  # type: ignore[no-any-return]


def _is_resharded(spec: TrainingSpec, start: Checkpoint, place: Place) -> bool:
    return spec.zero_stage > 0 and start.world_size != place.world_size


STRATEGY = ZeroStrategy()
