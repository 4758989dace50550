"""The cluster as the API shows it: nodes, reserved resources, loaded models and the queue.

Concurrent requests share a reading, which is kept for two seconds. This machine is measured
directly; the metrics of all nodes, which Ray exports, have the use of the other machines and of
GPUs, and the models that the replicas have loaded.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import list_start_order
from apps.http_api.cluster.machine_use import (
    HISTORY_S,
    MachineMonitor,
    MachineUse,
    UseSample,
)
from apps.http_api.cluster.node_metrics import NodeMetrics, ReplicaModel, fetch_metrics
from apps.http_api.cluster.process_use import ProcessMonitor, Purpose, PurposeUse, list_shares
from apps.http_api.cluster.ray_nodes import ClusterNodes, RayNode
from storage.durable import DamagedFileError
from system.threads import DedicatedThread
from training.preflight.resources import wants_gpu
from training.run.folder import RunFolder
from training.spec import TrainingSpec

LIFETIME_S = 2.0
METRICS_LIFETIME_S = 5.0
"""Ray's agents update their metrics every few seconds."""
SIZES_LIFETIME_S = 60.0
MAX_QUEUE = 100
_NO_METRICS = NodeMetrics()


@dataclass(frozen=True)
class _Reading:
    """Everything that one reading found."""

    nodes: Sequence[RayNode]
    free: Mapping[str, float]
    machine: MachineUse
    uses: Mapping[Purpose, PurposeUse] | None
    training_cpus: float
    training_gpus: float
    queue: Sequence[Mapping[str, object]]
    models_bytes: int


class ClusterView:
    """Reads the cluster for the API. For use in one event loop."""

    def __init__(
        self,
        runs: RunIndex,
        sizes: ModelSizes,
        nodes: ClusterNodes,
        machine: MachineMonitor,
    ) -> None:
        self._runs, self._sizes = runs, sizes
        self._nodes, self._machine = nodes, machine
        self._processes = ProcessMonitor()
        self._thread = DedicatedThread("cluster-view")
        self._reading: asyncio.Task[Mapping[str, object]] | None = None
        self._read_at = -LIFETIME_S
        self._metrics: Mapping[str, NodeMetrics] = {}
        self._metrics_at = -METRICS_LIFETIME_S
        self._histories: dict[str, deque[UseSample]] = {}
        self._models_bytes, self._sizes_at = 0, -SIZES_LIFETIME_S
        self._dashboard: asyncio.Task[str | None] | None = None

    async def describe(self) -> Mapping[str, object]:
        """Return the cluster as the API shows it, at most `LIFETIME_S` old."""
        is_over = self._reading is None or self._reading.done()
        if is_over and time.monotonic() - self._read_at >= LIFETIME_S:
            self._read_at = time.monotonic()
            self._reading = asyncio.create_task(self._describe())
        assert self._reading is not None
        return await asyncio.shield(self._reading)

    async def _describe(self) -> Mapping[str, object]:
        found = await self._thread.run(self._read)
        metrics = await self._read_metrics(found.nodes)
        nodes = found.nodes or [_describe_machine(found.machine)]
        return {
            "object": "cluster",
            "at": int(time.time()),
            "nodes": [
                self._describe_node(place, node, found, metrics.get(node.id, _NO_METRICS))
                for place, node in enumerate(nodes)
            ],
            "cpus": _describe_resource(nodes, found, "CPU", found.training_cpus),
            "gpus": _describe_resource(nodes, found, "GPU", found.training_gpus),
            "models": _describe_models([metrics.get(node.id, _NO_METRICS) for node in nodes]),
            "queue": found.queue,
            "dashboard_url": self._find_dashboard(),
        }

    def _read(self) -> _Reading:
        """Read everything that may block; runs in a thread."""
        now = time.monotonic()
        if now - self._sizes_at >= SIZES_LIFETIME_S:
            self._models_bytes, self._sizes_at = self._sizes.measure(), now
        nodes = self._nodes.list_nodes()
        cpus, gpus, queue = self._read_runs(sum(node.num_gpus for node in nodes))
        return _Reading(
            nodes=nodes,
            free=self._nodes.count_free(),
            machine=self._machine.read(),
            uses=self._processes.read(),
            training_cpus=cpus,
            training_gpus=gpus,
            queue=queue,
            models_bytes=self._models_bytes,
        )

    def _read_runs(self, num_gpus: float) -> tuple[float, float, list[Mapping[str, object]]]:
        """Return the CPUs and GPUs of running runs, and the runs in the order of their start."""
        cpus, gpus = 0.0, 0.0
        queue: list[Mapping[str, object]] = []
        for run, record in list_start_order(self._runs.scan_unfinished()):
            if record.is_final or record.status == "paused":
                continue
            if record.status == "running" and (spec := _find_spec(run)) is not None:
                cpus += spec.num_workers * spec.cpus_per_worker
                gpus += spec.num_workers if wants_gpu(spec, num_gpus) else 0
            queue.append(
                {
                    "id": record.id,
                    "status": record.status,
                    "name": record.request.get("suffix"),
                    "model": record.request.get("model"),
                    "created_at": record.created_at,
                    "waiting_for": record.waiting_for,
                }
            )
        queue.sort(key=lambda entry: entry["status"] != "running")
        return cpus, gpus, queue[:MAX_QUEUE]

    async def _read_metrics(self, nodes: Sequence[RayNode]) -> Mapping[str, NodeMetrics]:
        if time.monotonic() - self._metrics_at >= METRICS_LIFETIME_S:
            self._metrics_at = time.monotonic()
            urls = {node.id: node.metrics_url for node in nodes if node.metrics_url is not None}
            found = await fetch_metrics(list(urls.values())) if urls else []
            self._metrics = dict(zip(urls, found, strict=True))
            present = {node.id for node in nodes}
            self._histories = {key: one for key, one in self._histories.items() if key in present}
            for node in nodes:
                self._record(node, self._metrics.get(node.id, _NO_METRICS))
        return self._metrics

    def _record(self, node: RayNode, metrics: NodeMetrics) -> None:
        """Add the use of another machine to its history; this machine records its own.

        It is known only when the cluster is requested, so the samples are at irregular times.
        """
        if node.is_this or metrics.cpu_share is None:
            return
        memory = (metrics.memory_used or 0) / (metrics.memory_total or 1)
        now = int(time.time())
        history = self._histories.setdefault(node.id, deque())
        history.append(UseSample(now, round(metrics.cpu_share, 3), round(memory, 3)))
        while history[0].at < now - HISTORY_S:
            history.popleft()

    def _find_dashboard(self) -> str | None:
        """Return the URL of Ray's dashboard once the cluster has named it."""
        if self._dashboard is None:
            self._dashboard = asyncio.create_task(asyncio.to_thread(self._nodes.find_dashboard))
        is_known = self._dashboard.done() and self._dashboard.exception() is None
        return self._dashboard.result() if is_known else None

    def _describe_node(
        self, place: int, node: RayNode, found: _Reading, metrics: NodeMetrics
    ) -> Mapping[str, object]:
        described: dict[str, Any] = {
            "name": f"node {place + 1}",
            "id": node.id[:8],
            "is_head": node.is_head,
            "num_cpus": node.num_cpus,
            "gpus": [asdict(gpu) for gpu in metrics.gpus],
        }
        if not node.is_this:
            history = self._histories.get(node.id, ())
            return {
                **described,
                "cpu": _describe_share(metrics.cpu_share, None),
                "memory": _describe_bytes(metrics.memory_used, metrics.memory_total, None),
                "disk": _describe_bytes(metrics.disk_used, metrics.disk_total, None),
                "history": _describe_history(history),
            }
        machine, uses = found.machine, found.uses
        memory = None if uses is None else {name: use.memory_bytes for name, use in uses.items()}
        stored = {"models": found.models_bytes}
        return {
            **described,
            "cpu": _describe_share(machine.cpu_share, uses),
            "memory": _describe_bytes(machine.memory_used, machine.memory_total, memory),
            "disk": _describe_bytes(machine.disk_used, machine.disk_total, stored),
            "history": _describe_history(self._machine.list_history()),
        }


def _find_spec(run: RunFolder) -> TrainingSpec | None:
    """Return the settings of a run; None if they cannot be read, which its record reports."""
    try:
        return run.read_spec()
    except (DamagedFileError, OSError):
        return None


def _describe_machine(machine: MachineUse) -> RayNode:
    """Return this machine as the only node, for an API that runs without Ray."""
    return RayNode(f"{os.getpid():08d}", True, True, machine.num_cpus, 0.0, None)


def _describe_share(
    share: float | None, uses: Mapping[Purpose, PurposeUse] | None
) -> Mapping[str, object]:
    shown = None if share is None else round(share, 3)
    return {"share": shown, "uses": None if uses is None else list_shares(uses)}


def _describe_bytes(
    used: int | None, total: int | None, uses: Mapping[Any, int] | None
) -> Mapping[str, object]:
    return {"used": used, "total": total, "uses": uses}


def _describe_history(samples: Collection[UseSample]) -> Mapping[str, object]:
    return {
        "at": [sample.at for sample in samples],
        "cpu": [sample.cpu for sample in samples],
        "memory": [sample.memory for sample in samples],
    }


def _describe_resource(
    nodes: Sequence[RayNode], found: _Reading, name: str, num_training: float
) -> Mapping[str, float]:
    """Return how much of a resource is reserved: by runs, by all else, and not at all."""
    total = sum(node.num_cpus if name == "CPU" else node.num_gpus for node in nodes)
    reserved = max(0.0, total - found.free.get(name, 0.0)) if found.nodes else 0.0
    training = min(num_training, reserved)
    return {
        "total": round(total, 2),
        "training": round(training, 2),
        "serving": round(reserved - training, 2),
        "free": round(total - reserved, 2),
    }


def _describe_models(metrics: Sequence[NodeMetrics]) -> list[Mapping[str, object]]:
    """Return the loaded models, each with the sums over its replicas."""
    by_id: dict[tuple[str, str], list[ReplicaModel]] = {}
    for one in metrics:
        for model in one.models:
            by_id.setdefault((model.id, model.deployment), []).append(model)
    return [
        {
            "id": model_id,
            "deployment": deployment,
            "num_replicas": len(models),
            "memory_bytes": sum(model.memory_bytes for model in models),
            "num_running": sum(model.num_running for model in models),
            "num_waiting": sum(model.num_waiting for model in models),
        }
        for (model_id, deployment), models in sorted(by_id.items())
    ]
