"""The metrics of a node that Ray exports in Prometheus' format, as far as the cluster view needs.

Ray's documentation lists those of nodes ("System Metrics"); `serving.metrics` has our own.
"""

import asyncio
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx

logger = logging.getLogger(__name__)

_TIMEOUT_S = 3.0
_MAX_BYTES = 16 << 20
_MEGABYTE = 1 << 20  # Ray counts GPU memory in MiB
_SAMPLE = re.compile(r"^ray_(node_\w+|tuneserve_\w+)\{([^\n]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class GpuUse:
    """The use of one GPU; the share is from 0 to 1."""

    index: int
    name: str
    share: float
    memory_used: int
    memory_total: int


class ReplicaModel(NamedTuple):
    """A model in the memory of one replica; `deployment` is Generator or Classifier."""

    id: str
    deployment: str
    replica: str
    memory_bytes: int
    num_running: int
    num_waiting: int


@dataclass(frozen=True)
class NodeMetrics:
    """What the metrics of one node contain; None for what they lack."""

    cpu_share: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    disk_used: int | None = None
    disk_total: int | None = None
    gpus: tuple[GpuUse, ...] = ()
    models: tuple[ReplicaModel, ...] = ()


@dataclass
class _Samples:
    """Samples by name, with their labels."""

    values: dict[str, list[tuple[Mapping[str, str], float]]] = field(default_factory=dict)

    def find(self, name: str) -> float | None:
        """Return the largest value of a metric; None if there is none."""
        return max((value for _, value in self.values.get(name, ())), default=None)

    def group(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return the values of a metric by some of its labels."""
        return {
            tuple(found.get(label, "") for label in labels): value
            for found, value in self.values.get(name, ())
        }


async def fetch_metrics(urls: Sequence[str]) -> list[NodeMetrics]:
    """Request the metrics of several nodes at once."""
    # Plain HTTP inside the cluster; loading certificates for each client would take 20 ms.
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501
        return await asyncio.gather(*(fetch_node_metrics(client, url) for url in urls))


async def fetch_node_metrics(client: httpx.AsyncClient, url: str) -> NodeMetrics:
    """Request the metrics of a node; they are empty if its agent does not answer."""
    try:
        response = await client.get(url, timeout=_TIMEOUT_S)
        response.raise_for_status()
    except httpx.HTTPError as exc:
        logger.info("the metrics of a node cannot be read: %s: %s", type(exc).__name__, exc)
        return NodeMetrics()
    return parse_node_metrics(response.text[:_MAX_BYTES])


def parse_node_metrics(text: str) -> NodeMetrics:
    """Parse the metrics of a node; samples that are not finite numbers are ignored."""
    samples = _Samples()
    for name, labels, written in _SAMPLE.findall(text):
        try:
            value = float(written)
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        found = {label: _unescape(content) for label, content in _LABEL.findall(labels)}
        samples.values.setdefault(name, []).append((found, value))
    cpu = samples.find("node_cpu_utilization")
    disk_used, disk_free = samples.find("node_disk_usage"), samples.find("node_disk_free")
    return NodeMetrics(
        cpu_share=None if cpu is None else cpu / 100,
        memory_used=_to_int(samples.find("node_mem_used")),
        memory_total=_to_int(samples.find("node_mem_total")),
        disk_used=_to_int(disk_used),
        disk_total=None if disk_used is None or disk_free is None else int(disk_used + disk_free),
        gpus=tuple(_list_gpus(samples)),
        models=tuple(_list_models(samples)),
    )


def _to_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _unescape(text: str) -> str:
    return text.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")


def _list_gpus(samples: _Samples) -> Iterator[GpuUse]:
    labels = ("GpuIndex", "GpuDeviceName")
    shares = samples.group("node_gpus_utilization", *labels)
    used = samples.group("node_gram_used", *labels)
    free = samples.group("node_gram_available", *labels)
    for key in sorted(used, key=lambda one: (len(one[0]), one[0])):
        yield GpuUse(
            index=int(key[0]) if key[0].isdecimal() else 0,
            name=key[1],
            share=shares.get(key, 0.0) / 100,
            memory_used=int(used[key] * _MEGABYTE),
            memory_total=int((used[key] + free.get(key, 0.0)) * _MEGABYTE),
        )


def _list_models(samples: _Samples) -> Iterator[ReplicaModel]:
    labels = ("model", "deployment", "replica")
    running = samples.group("tuneserve_running_requests", *labels)
    waiting = samples.group("tuneserve_waiting_requests", *labels)
    for key, num_bytes in sorted(samples.group("tuneserve_model_bytes", *labels).items()):
        if num_bytes > 0:  # 0 for a model that was evicted
            num_running, num_waiting = int(running.get(key, 0)), int(waiting.get(key, 0))
            model, deployment, replica = key
            yield ReplicaModel(model, deployment, replica, int(num_bytes), num_running, num_waiting)
