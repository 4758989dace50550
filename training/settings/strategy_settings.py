"""The part of a spec that says how a training is spread over workers."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from training.settings.source_settings import MAX_INTEGER


class StrategySettings(BaseModel):
    """The strategy, and the workers with their resources."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    strategy: Literal["zero", "ddp"] = Field(
        "zero",
        description="How the training is spread over the workers: 'zero' is DeepSpeed, which "
        "shards by 'zero_stage'; 'ddp' is PyTorch's DistributedDataParallel, in which every worker "
        "has the whole model.",
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        3,
        description="What DeepSpeed shards over the workers: 0 nothing, 1 the optimizer's state, "
        "2 gradients too, 3 parameters too.",
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
