"""The nodes of the Ray cluster of this process, their free resources, and Ray's dashboard."""

import logging
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import ray
from ray.dashboard.utils import ray_address_to_api_server_url

from apps.access.keyless import is_loopback_host

logger = logging.getLogger(__name__)

_HEAD_RESOURCE = "node:__internal_head__"


class RayNode(NamedTuple):
    """A node that is alive; `id` is Ray's, and `is_this` marks the node of this process."""

    id: str
    is_head: bool
    is_this: bool
    num_cpus: float
    num_gpus: float
    metrics_url: str | None


class ClusterNodes(Protocol):
    """What the cluster view needs of a cluster; all methods may block for a moment."""

    def list_nodes(self) -> list[RayNode]:
        """List the nodes, the head first; none without a cluster."""

    def count_free(self) -> Mapping[str, float]:
        """Return the free resources of the cluster under Ray's names."""

    def find_dashboard(self) -> str | None:
        """Return the URL of Ray's dashboard if it listens for this machine only."""


class RayNodes:
    """The cluster that this process is connected to, through Ray's public interface."""

    def list_nodes(self) -> list[RayNode]:
        """List the nodes that are alive, the head first."""
        if not ray.is_initialized():
            return []
        own_id = ray.get_runtime_context().get_node_id()
        found = [
            _describe(node, own_id)
            for node in ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"]
        ]
        return sorted(found, key=lambda node: (not node.is_head, node.id))

    def count_free(self) -> Mapping[str, float]:
        """Return the resources that no task or actor has reserved."""
        if not ray.is_initialized():
            return {}
        free: Mapping[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        return free

    def find_dashboard(self) -> str | None:
        """Ask the cluster for the URL of its dashboard; takes long if there is none."""
        return _find_dashboard() if ray.is_initialized() else None


def _describe(node: Mapping[str, object], own_id: str) -> RayNode:
    resources = node["Resources"]
    assert isinstance(resources, Mapping)
    port = node.get("MetricsExportPort")
    address = str(node["NodeManagerAddress"])
    host = f"[{address}]" if ":" in address else address
    return RayNode(
        id=str(node["NodeID"]),
        is_head=_HEAD_RESOURCE in resources,
        is_this=node["NodeID"] == own_id,
        num_cpus=float(resources.get("CPU", 0.0)),
        num_gpus=float(resources.get("GPU", 0.0)),
        metrics_url=f"http://{host}:{port}/metrics" if port else None,
    )


def _find_dashboard() -> str | None:
    try:
        url = ray_address_to_api_server_url(ray.get_runtime_context().gcs_address)
    except (RuntimeError, ConnectionError, ValueError) as exc:  # Ray runs without a dashboard
        logger.info("Ray's dashboard is unknown: %s", exc)
        return None
    host = str(url).partition("://")[2].rpartition(":")[0]
    return str(url) if is_loopback_host(host) else None
