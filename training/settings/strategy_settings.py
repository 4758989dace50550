"""The part of a spec that says how a training is spread over workers."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from training.settings.source_settings import MAX_INTEGER


class StrategySettings(BaseModel):
    """The strategy, and the workers with their resources."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    strategy: Literal["zero", "ddp", "pipeline"] = Field(
        "zero",
        description="How the training is spread over the workers: 'zero' is DeepSpeed, which "
        "shards by 'zero_stage'; 'ddp' is PyTorch's DistributedDataParallel, in which every worker "
        "has the whole model; 'pipeline' is DeepSpeed's pipeline, in which every worker has some "
        "of the layers.",
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        3,
        description="What DeepSpeed shards over the workers: 0 nothing, 1 the optimizer's state, "
        "2 gradients too, 3 parameters too. A pipeline has 1, over its replicas.",
    )
    pipeline_stages: int | None = Field(
        None,
        ge=2,
        le=4096,
        description="Stages of a pipeline, one worker each; 'num_workers' is a multiple of it, and "
        "every further multiple is a replica. Default: 'num_workers'.",
    )
    pipeline_partition: Literal["parameters", "uniform", "time"] = Field(
        "parameters",
        description="What the stages of a pipeline have equal shares of: 'parameters', decoder "
        "layers ('uniform'), or the measured 'time' of a forward pass.",
    )
    offload_optimizer: bool = Field(
        False, description="Keep the optimizer's state and step in CPU memory; stages 1 to 3."
    )
    offload_parameters: bool = Field(
        False, description="Keep the parameters in CPU memory between their uses; stage 3."
    )
    activation_checkpointing: bool = Field(
        False, description="Compute activations again in the backward pass instead of keeping them."
    )
    wall_clock_breakdown: bool = Field(
        False, description="Let DeepSpeed log how long each part of a step takes."
    )
    deepspeed: dict[str, Any] = Field(
        default_factory=dict,
        description="A DeepSpeed configuration of your own, or the file of one; 'auto' values are "
        "filled in from this spec, and what contradicts it is refused.",
    )
    num_workers: int = Field(2, ge=1, le=4096, description="Ray Train workers; the world size.")
    min_workers: int | None = Field(
        None,
        ge=1,
        le=MAX_INTEGER,
        description="Fewest workers with which training continues when the cluster shrinks; it "
        "grows back later, each time from the last checkpoint. Default: 'num_workers'.",
    )
    accelerator: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="'auto' takes one GPU per worker where the cluster has any GPU."
    )
    cpus_per_worker: float = Field(
        0.5, ge=0.1, description="Logical CPUs that each worker reserves in the Ray cluster."
    )
    threads_per_worker: int = Field(
        1, ge=1, le=256, description="Threads of each worker's arithmetic on the CPU."
    )

    @property
    def num_stages(self) -> int:
        """Parts of the model, each on a worker of its own."""
        return (self.pipeline_stages or self.num_workers) if self.strategy == "pipeline" else 1

    @property
    def num_replicas(self) -> int:
        """Shares of a step's micro batches that are computed at the same time."""
        return self.num_workers // self.num_stages

    @property
    def sharding_stage(self) -> int:
        """What is sharded over the replicas, as a stage of ZeRO; 0 is nothing."""
        return 0 if self.strategy == "ddp" else self.zero_stage

    @model_validator(mode="before")
    @classmethod
    def _choose_zero_stage(cls, values: Any) -> Any:
        """Choose the only stage of a pipeline unless the user names one."""
        is_pipeline = isinstance(values, dict) and values.get("strategy") == "pipeline"
        return {"zero_stage": 1, **values} if is_pipeline else values
