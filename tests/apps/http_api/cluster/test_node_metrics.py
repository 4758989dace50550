"""The metrics of a node in the format that Ray exports."""

import httpx
import pytest

from apps.http_api.cluster.node_metrics import (
    GpuUse,
    NodeMetrics,
    ReplicaModel,
    fetch_node_metrics,
    parse_node_metrics,
)

TEXT = """# HELP ray_node_cpu_utilization Total CPU usage
# TYPE ray_node_cpu_utilization gauge
ray_node_cpu_utilization{IsHeadNode="true",Version="2.60.0",ip="192.0.2.2"} 68.9
ray_node_mem_used{ip="192.0.2.2"} 2.16500224e+09
ray_node_mem_total{ip="192.0.2.2"} 2.5276510208e+10
ray_node_disk_usage{ip="192.0.2.2"} 2.0e+10
ray_node_disk_free{ip="192.0.2.2"} 8.0e+10
ray_node_gpus_utilization{GpuDeviceName="H100",GpuIndex="0",ip="192.0.2.2"} 75.0
ray_node_gram_used{GpuDeviceName="H100",GpuIndex="0",ip="192.0.2.2"} 1024.0
ray_node_gram_available{GpuDeviceName="H100",GpuIndex="0",ip="192.0.2.2"} 3072.0
ray_node_gram_used{GpuDeviceName="H100",GpuIndex="10",ip="192.0.2.2"} 1.0
ray_node_gram_used{GpuDeviceName="H100",GpuIndex="2",ip="192.0.2.2"} NaN_
ray_tuneserve_model_bytes{deployment="Generator",model="b",replica="r1",WorkerId="x"} 2.0e+08
ray_tuneserve_model_bytes{deployment="Generator",model="gone",replica="r1"} 0.0
ray_tuneserve_model_bytes{deployment="Classifier",model="a \\"quoted\\"",replica="r2"} 1.0e+08
ray_tuneserve_running_requests{deployment="Generator",model="b",replica="r1"} 3.0
ray_tuneserve_waiting_requests{deployment="Generator",model="b",replica="r1"} 1.0
ray_grpc_server_req_new_total{Method="x"} 5.0
"""


def test_metrics_of_node_gpus_and_models_are_read() -> None:
    found = parse_node_metrics(TEXT)
    assert found.cpu_share == pytest.approx(0.689)
    assert (found.memory_used, found.memory_total) == (2_165_002_240, 25_276_510_208)
    assert (found.disk_used, found.disk_total) == (20_000_000_000, 100_000_000_000)
    assert found.gpus == (
        GpuUse(0, "H100", 0.75, 1 << 30, 4 << 30),
        GpuUse(10, "H100", 0.0, 1 << 20, 1 << 20),
    )
    assert found.models == (
        ReplicaModel('a "quoted"', "Classifier", "r2", 100_000_000, 0, 0),
        ReplicaModel("b", "Generator", "r1", 200_000_000, 3, 1),
    )


def test_other_text_has_no_metrics() -> None:
    for text in ("<html>\nray_node_mem_used{} many\n", 'ray_node_mem_used{a="b"} NaN\n'):
        assert parse_node_metrics(text) == NodeMetrics()
    assert parse_node_metrics('ray_node_mem_used{a="b"} +Inf\n') == NodeMetrics()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_agent_that_fails_has_no_metrics() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/down":
            raise httpx.ConnectError("refused")
        return httpx.Response(500, text=TEXT)

    async with httpx.AsyncClient(transport=httpx.MockTransport(fail)) as client:
        assert await fetch_node_metrics(client, "http://node/metrics") == NodeMetrics()
        assert await fetch_node_metrics(client, "http://node/down") == NodeMetrics()
