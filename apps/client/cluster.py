"""Requests for the state of the cluster."""

from collections.abc import Mapping

from apps.client.connection import ApiConnection, ApiRequest
from apps.client.resources import Resource, read_resource


class ProcessorUse(Resource):
    """The share of the processors in use, and by purpose; None if unknown."""

    share: float | None = None
    uses: Mapping[str, float] | None = None


class SpaceUse(Resource):
    """Used and total bytes of memory or a disk, and by purpose; None if unknown."""

    used: int | None = None
    total: int | None = None
    uses: Mapping[str, int] | None = None


class NodeGpu(Resource):
    """The use of one GPU."""

    index: int
    name: str = ""
    share: float = 0.0
    memory_used: int = 0
    memory_total: int = 0


class NodeHistory(Resource):
    """The shares of processors and memory in use at times in Unix seconds, oldest first."""

    at: tuple[float, ...] = ()
    cpu: tuple[float, ...] = ()
    memory: tuple[float, ...] = ()


class ClusterNode(Resource):
    """One machine of the cluster."""

    name: str
    id: str = ""
    is_head: bool = False
    num_cpus: float = 0.0
    gpus: tuple[NodeGpu, ...] = ()
    cpu: ProcessorUse = ProcessorUse()
    memory: SpaceUse = SpaceUse()
    disk: SpaceUse = SpaceUse()
    history: NodeHistory = NodeHistory()


class ReservedResource(Resource):
    """How much of a resource is reserved, by purpose."""

    total: float = 0.0
    training: float = 0.0
    serving: float = 0.0
    free: float = 0.0


class ServedModel(Resource):
    """A model in the memory of replicas."""

    id: str
    deployment: str = ""
    num_replicas: int = 1
    memory_bytes: int = 0
    num_running: int = 0
    num_waiting: int = 0


class QueuedRun(Resource):
    """A run that is queued or running."""

    id: str
    status: str
    name: str | None = None
    model: str | None = None
    created_at: int = 0
    waiting_for: str | None = None


class ClusterState(Resource):
    """The machines, what uses them, the loaded models and the queue."""

    nodes: tuple[ClusterNode, ...] = ()
    cpus: ReservedResource = ReservedResource()
    gpus: ReservedResource = ReservedResource()
    models: tuple[ServedModel, ...] = ()
    queue: tuple[QueuedRun, ...] = ()
    dashboard_url: str | None = None


class ClusterClient:
    """Shows the state of the cluster."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def get(self) -> ClusterState:
        """Return the state of the cluster."""
        request = ApiRequest("GET", "/v1/cluster")
        return read_resource(ClusterState, await self._connection.read_object(request))
