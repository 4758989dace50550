"""The cluster over HTTP, with nodes that a test defines."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from apps.fine_tuning.queue import RunQueue
from apps.http_api.app import build_http
from apps.http_api.cluster import cluster_view
from apps.http_api.cluster.ray_nodes import RayNode
from storage.layout import StorageLayout
from tests.apps.conftest import AppClient, NotedJobs, build_services, create_run
from tests.apps.http_api.cluster.test_node_metrics import TEXT
from tests.apps.stub_api import LocalServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class NotedNodes:
    """Nodes that the test sets."""

    nodes: list[RayNode] = field(default_factory=list)
    free: Mapping[str, float] = field(default_factory=dict)
    num_reads: int = 0

    def list_nodes(self) -> list[RayNode]:
        self.num_reads += 1
        return self.nodes

    def count_free(self) -> Mapping[str, float]:
        return self.free

    def find_dashboard(self) -> str | None:
        return "http://127.0.0.1:8265"


def make_client(layout: StorageLayout, queue: RunQueue, nodes: NotedNodes) -> AppClient:
    services = build_services(layout, queue, nodes=nodes)
    return AppClient(build_http(services, None), base_url="http://127.0.0.1:8000")


async def read(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/v1/cluster")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_api_without_ray_shows_this_machine(layout: StorageLayout, queue: RunQueue) -> None:
    found = await read(make_client(layout, queue, NotedNodes()))
    (node,) = found["nodes"]
    assert (node["name"], node["is_head"]) == ("node 1", True)
    assert 0 < node["memory"]["used"] < node["memory"]["total"]
    assert node["disk"]["uses"]["models"] > 0
    assert 0 <= node["cpu"]["share"] <= 1
    assert found["cpus"]["free"] == found["cpus"]["total"] == node["num_cpus"]
    assert (found["models"], found["queue"]) == ([], [])


async def test_resources_of_running_runs_are_those_of_training(
    layout: StorageLayout, queue: RunQueue, jobs: NotedJobs, file_id: str
) -> None:
    training = {"num_workers": 2, "cpus_per_worker": 0.5}
    running = await create_run(queue, file_id, training=training, suffix="first")
    await queue.reconcile()
    running.update_record(status="running")
    waiting = await create_run(queue, file_id)
    await queue.reconcile()
    nodes = NotedNodes([RayNode("ab" * 28, True, True, 4.0, 0.0, None)], {"CPU": 2.25})
    found = await read(make_client(layout, queue, nodes))
    assert found["cpus"] == {"total": 4.0, "training": 1.0, "serving": 0.75, "free": 2.25}
    assert found["gpus"] == {"total": 0, "training": 0, "serving": 0, "free": 0}
    first, second = found["queue"]
    assert (first["id"], first["name"], first["status"]) == (running.path.name, "first", "running")
    assert (second["id"], second["status"]) == (waiting.path.name, "queued")
    assert second["waiting_for"] == "number 1 in the queue"
    assert found["nodes"][0]["id"] == "abababab"


async def test_other_nodes_and_models_are_read_from_metrics(
    layout: StorageLayout, queue: RunQueue
) -> None:
    with LocalServer(PlainTextResponse(TEXT)) as url:
        metrics = f"{url}/metrics"
        nodes = NotedNodes(
            [
                RayNode("aa" * 28, True, True, 2.0, 0.0, metrics),
                RayNode("bb" * 28, False, False, 8.0, 1.0, metrics),
                RayNode("cc" * 28, False, False, 8.0, 0.0, "http://127.0.0.1:9/metrics"),
            ]
        )
        found = await read(make_client(layout, queue, nodes))
    _, other, silent = found["nodes"]
    assert other["cpu"] == {"share": 0.689, "uses": None}
    assert other["memory"]["total"] == 25_276_510_208
    assert other["history"]["cpu"] == [0.689]
    assert [gpu["index"] for gpu in other["gpus"]] == [0, 10]
    assert (silent["cpu"]["share"], silent["memory"]["total"]) == (None, None)
    model = next(model for model in found["models"] if model["id"] == "b")
    assert (model["num_replicas"], model["memory_bytes"]) == (2, 400_000_000)
    assert (model["num_running"], model["num_waiting"]) == (6, 2)
    assert "127.0.0.1" not in str({**found, "dashboard_url": None})


async def test_samples_of_other_nodes_have_their_times(
    layout: StorageLayout, queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_view, "LIFETIME_S", 0.0)
    monkeypatch.setattr(cluster_view, "METRICS_LIFETIME_S", 0.0)
    now = 1_700_000_000
    monkeypatch.setattr("apps.http_api.cluster.cluster_view.time.time", lambda: now)
    with LocalServer(PlainTextResponse(TEXT)) as url:
        this = RayNode("aa" * 28, True, True, 2.0, 0.0, None)
        other = RayNode("bb" * 28, False, False, 8.0, 1.0, f"{url}/metrics")
        nodes = NotedNodes([this, other])
        client = make_client(layout, queue, nodes)
        for delay_s, at in ((0, [now]), (5, [now, now + 5]), (595, [now, now + 5, now + 600])):
            now += delay_s
            assert (await read(client))["nodes"][1]["history"]["at"] == at
        now += 1  # the first sample is too old now
        history = (await read(client))["nodes"][1]["history"]
        assert [at - now for at in history["at"]] == [-596, -1, 0]
        assert history["cpu"] == [0.689] * 3
        nodes.nodes = [this]
        await read(client)
        nodes.nodes = [this, other]
        assert (await read(client))["nodes"][1]["history"]["at"] == [now]


async def test_requests_share_a_reading(
    layout: StorageLayout, queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_view, "LIFETIME_S", 1e9)
    nodes = NotedNodes()
    client = make_client(layout, queue, nodes)
    for _ in range(3):
        await read(client)
    assert nodes.num_reads == 1
    monkeypatch.setattr(cluster_view, "LIFETIME_S", 0.0)
    await read(client)
    assert nodes.num_reads == 2


async def test_dashboard_is_shown_once_the_cluster_has_named_it(
    layout: StorageLayout, queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_view, "LIFETIME_S", 0.0)
    client = make_client(layout, queue, NotedNodes())
    async with asyncio.timeout(60):
        while (await read(client))["dashboard_url"] is None:
            pass
    assert (await read(client))["dashboard_url"] == "http://127.0.0.1:8265"
