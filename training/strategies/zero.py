"""The strategy of DeepSpeed: optimizer state, gradients and weights sharded over the workers.

Rajbhandari et al. 2020, arXiv 1910.02054; `zero_stage` says what is sharded.
"""

import logging
import os
from typing import Any

import torch

from training.batching import BatchPlan
from training.deepspeed.config import build_deepspeed_config
from training.deepspeed.cpu_op import load_cpu_op
from training.deepspeed.optimizer import build_optimizer
from training.model import find_hidden_size, find_unfit_head, load_model
from training.place import Place
from training.spec import TrainingSpec
from training.strategy import TrainingEngine
from training.task import Objective


class ZeroStrategy:
    """DeepSpeed's engine itself is the engine of the strategy."""

    def prepare_process(self, device: torch.device) -> None:
        """Set up DeepSpeed's collectives in the process group that Ray Train created."""
        # DeepSpeed guesses its accelerator at import: set it before, and import it in workers only.
        os.environ["DS_ACCELERATOR"] = device.type
        if device.type == "cpu":
            load_cpu_op()
        import deepspeed

        deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo")

    def start_engine(
        self,
        spec: TrainingSpec,
        place: Place,
        plan: BatchPlan,
        objective: Objective,
        *,
        load_universal: bool = False,
    ) -> TrainingEngine:
        """Load the base model, sharded during loading, and wrap it in DeepSpeed's engine."""
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
            load_universal=load_universal,
        )
        unfit_head = find_unfit_head(spec, objective)
        shards_on_load = HfDeepSpeedConfig(config)  # must live across from_pretrained
        model = load_model(spec, objective, plan.layout, place.device, unfit_head)
        del shards_on_load
        engine: Any
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=build_optimizer(model, spec), config=config
        )
        return engine  # type: ignore[no-any-return]

    def is_resharded(self, spec: TrainingSpec, saved_by: int, place: Place) -> bool:
        """Return whether a checkpoint of `saved_by` workers must be resharded for this many."""
        return spec.zero_stage > 0 and saved_by != place.world_size


STRATEGY = ZeroStrategy()
