"""The cluster as a worker of a real Ray cluster sees it: nodes, metrics, processes, dashboard."""

import json
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.trains, pytest.mark.long]

TIMEOUT_S = 240.0
READ_CLUSTER = """
import asyncio, json, time, ray
from ray.util.metrics import Gauge
from training.cluster.agent_port import choose_free_agent_port

@ray.remote(num_cpus=0.5)
class Replica:
    def __init__(self):
        from apps.http_api.cluster.process_use import ProcessMonitor
        self.monitor = ProcessMonitor()
        self.gauge = Gauge("tuneserve_model_bytes", "Bytes.", ("model",))
        self.gauge.set(123e6, tags={"model": "tuned"})
        self.monitor.read()

    def read(self):
        from apps.http_api.cluster.node_metrics import fetch_metrics
        from apps.http_api.cluster.ray_nodes import RayNodes
        nodes = RayNodes()
        (node,) = nodes.list_nodes()
        while True:  # until the agent has exported the metrics
            (metrics,) = asyncio.run(fetch_metrics([node.metrics_url]))
            if metrics.models and metrics.memory_total:
                break
            time.sleep(0.5)
        uses = {purpose: list(use) for purpose, use in self.monitor.read().items()}
        return json.dumps({
            "node": node._asdict(), "free": dict(nodes.count_free()), "uses": uses,
            "dashboard": nodes.find_dashboard(), "models": metrics.models,
            "cpu": metrics.cpu_share, "memory": [metrics.memory_used, metrics.memory_total],
            "disk": [metrics.disk_used, metrics.disk_total],
        })

with choose_free_agent_port():
    ray.init(address="local", num_cpus=2, include_dashboard=True, log_to_driver=False)
print(ray.get(Replica.remote().read.remote()))
"""


def test_worker_reads_the_state_of_its_cluster() -> None:
    command = [sys.executable, "-c", READ_CLUSTER]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    node = found["node"]
    assert (node["is_head"], node["is_this"], node["num_cpus"]) == (True, True, 2.0)
    assert found["free"]["CPU"] == 1.5
    assert found["dashboard"].startswith("http://127.0.0.1:")
    assert [model[0] for model in found["models"]] == ["tuned"]
    assert 0 <= found["cpu"] <= 1
    for used, total in (found["memory"], found["disk"]):
        assert 0 < used < total
    memory = {purpose: use[0] for purpose, use in found["uses"].items()}
    assert memory["system"] > memory["training"] > 10_000_000  # Ray's own, and the replica here
    assert memory["serving"] == 0
    assert all(use[1] is not None for use in found["uses"].values())
