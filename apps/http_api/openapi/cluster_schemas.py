"""Schemas in `/openapi.json` of the cluster."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class ProcessorUse(_Answer):
    """The use of all processors of a node; `uses` by serving, training and system (Ray)."""

    share: float | None = Field(description="From 0 to 1; null if unknown.")
    uses: Mapping[str, float] | None = Field(description="Shares by purpose, if known.")


class SpaceUse(_Answer):
    """The use of memory or of a disk, in bytes; null for what is unknown."""

    used: int | None
    total: int | None
    uses: Mapping[str, int] | None = Field(
        description="Memory: bytes by purpose (serving, training, system). Disk: bytes of models "
        "and checkpoints."
    )


class NodeGpu(_Answer):
    """The use of one GPU."""

    index: int
    name: str
    share: float = Field(description="From 0 to 1.")
    memory_used: int
    memory_total: int


class NodeHistory(_Answer):
    """The shares of processors and memory in use during the last minutes, oldest first."""

    at: list[int]
    cpu: list[float]
    memory: list[float]


class ClusterNode(_Answer):
    """One machine of the cluster."""

    name: str
    id: str = Field(description="The first characters of Ray's id of the node.")
    is_head: bool
    num_cpus: float
    gpus: list[NodeGpu]
    cpu: ProcessorUse
    memory: SpaceUse
    disk: SpaceUse
    history: NodeHistory


class ReservedResource(_Answer):
    """How much of a resource Ray has reserved, by purpose."""

    total: float
    training: float
    serving: float
    free: float


class LoadedModel(_Answer):
    """A model in the memory of replicas; sums over all of them."""

    id: str
    deployment: str
    num_replicas: int
    memory_bytes: int
    num_running: int
    num_waiting: int


class QueuedRun(_Answer):
    """A run that is queued or running."""

    id: str
    status: str
    name: str | None
    model: str | None
    created_at: int
    waiting_for: str | None


class Cluster(_Answer):
    """The machines, what uses them, the loaded models, and the unfinished runs."""

    object: Literal["cluster"]
    at: int = Field(description="Unix seconds.")
    nodes: list[ClusterNode]
    cpus: ReservedResource
    gpus: ReservedResource
    models: list[LoadedModel]
    queue: list[QueuedRun] = Field(
        description="In the order in which they start, those that run first."
    )
    dashboard_url: str | None = Field(
        description="Ray's dashboard, if it listens on a loopback address of the head node."
    )
