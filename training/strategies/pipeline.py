"""The strategy of DeepSpeed's pipeline: every worker has some of the layers.

Huang et al. 2019, arXiv 1811.06965. Workers beyond the number of stages are replicas of the
pipeline, over which the optimizer's state is sharded (ZeRO stage 1).
"""

from typing import Any

import torch

from training.batching import BatchPlan
from training.checkpoint.format import Checkpoint, CheckpointError, find_shards
from training.deepspeed.config import build_deepspeed_config
from training.deepspeed.optimizer import build_optimizer
from training.deepspeed.process import prepare_deepspeed
from training.model import find_hidden_size
from training.place import Place
from training.spec import TrainingSpec
from training.strategy import TrainingEngine
from training.task import Objective


class PipelineStrategy:
    """Every worker has one stage of the model, and computes it for all rows of its replica."""

    def prepare_process(self, device: torch.device) -> None:
        """Set up DeepSpeed's collectives in the process group that Ray Train created."""
        prepare_deepspeed(device)

    def start_engine(
        self,
        spec: TrainingSpec,
        place: Place,
        plan: BatchPlan,
        objective: Objective,  # noqa: ARG002 - that of language models
        start: Checkpoint | None = None,
    ) -> TrainingEngine:
        """Load the layers of this worker's stage; a checkpoint determines which these are."""
        import deepspeed

        from training.pipeline.staged_engine import StagedEngine
        from training.pipeline.staged_model import (
            StagedModel,
            build_layers,
            choose_stages,
            read_stage,
        )
        from training.pipeline.weights import BaseWeights

        if start is not None and start.world_size != place.world_size:
            raise CheckpointError(
                f"{start.path.name!r} is of {start.world_size} workers, and a pipeline resumes "
                f"with the same number; num_workers is {place.world_size}"
            )
        weights = BaseWeights(spec)
        layers = build_layers(spec, weights)
        if start is None:
            bounds = choose_stages(spec, weights, layers, place)
        else:
            bounds = read_stage(find_shards(start.path), 0)["bounds"]
        model = StagedModel(spec, weights, layers, bounds)
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=build_optimizer(model, spec), config=_build_config(spec, plan)
        )
        shapes = {name: one.shape for name, one in weights.model.named_parameters()}
        staged: Any = StagedEngine(engine, model, shapes)  # most of what it has is DeepSpeed's
        return staged  # type: ignore[no-any-return]


def _build_config(spec: TrainingSpec, plan: BatchPlan) -> dict[str, Any]:
    """Build a configuration in which losses are not divided: `StagedEngine` scales them."""
    config = build_deepspeed_config(
        spec,
        spec.num_replicas,
        hidden_size=find_hidden_size(spec.base_model),
        num_shares=plan.num_shares,
    )
    config |= {"train_batch_size": spec.num_replicas, "gradient_accumulation_steps": 1}
    if spec.precision == "bf16":
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


STRATEGY = PipelineStrategy()
