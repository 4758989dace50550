"""`/v1/cluster`: the machines, what uses them, the loaded models and the queue."""

from collections.abc import Mapping

from fastapi import APIRouter, Request

from apps.access.roles import Permission, requires
from apps.http_api.cluster.cluster_view import ClusterView

router = APIRouter(prefix="/v1")


@router.get("/cluster")
@requires(Permission.READ_JOBS)
async def show_cluster(request: Request) -> Mapping[str, object]:
    """Show the nodes with their use, reserved resources, loaded models and unfinished runs."""
    view: ClusterView = request.app.state.cluster
    return await view.describe()
