"""The cluster as HTML."""

import re
from typing import Any

import pytest

from apps.client.cluster import ClusterNode, ClusterState
from apps.ui.cluster.cluster_markup import render_cluster, render_node
from tests.apps.stub_api import HOSTILE

NODE: dict[str, Any] = {
    "name": "node 1",
    "id": "ab12cd34",
    "is_head": True,
    "num_cpus": 2,
    "cpu": {"share": 0.6, "uses": {"serving": 0.25, "training": 0.3, "system": 0.01}},
    "memory": {"used": 8e9, "total": 16e9, "uses": {"serving": 2e9, "training": 1e9, "system": 0}},
    "disk": {"used": 20e9, "total": 100e9, "uses": {"models": 5e9}},
    "history": {"at": [1000, 1010, 1020], "cpu": [0.1, 0.5, 0.6], "memory": [0.5, 0.5, 0.5]},
}


def read_text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_bars_name_what_is_used_by_what() -> None:
    html = render_node(ClusterNode.model_validate(NODE))
    text = read_text(html)
    assert "Processors 60% of 2 Serving 25% Training 30% Ray 1% Other 4%" in text
    assert "Memory 8 GB of 16 GB Serving 2 GB Training 1 GB Other 5 GB" in text
    assert "Disk 20 GB of 100 GB Models and checkpoints 5 GB Other 15 GB" in text
    assert 'style="width:12.5%"' in html  # 2 of 16 GB
    assert 'aria-label="Processors in the last 20 s: 10% to 60%"' in html
    assert 'points="0.0,25.2 60.0,14.0 120.0,11.2"' in html


def test_samples_are_drawn_at_their_times() -> None:
    history = {"at": [1000, 1005, 1020], "cpu": [1.0, 0.5, 0.0], "memory": [0.5]}
    html = render_node(ClusterNode.model_validate({**NODE, "history": history}))
    assert re.findall(r'points="([^"]*)"', html) == ["0.0,0.0 30.0,14.0 120.0,28.0"]


@pytest.mark.parametrize("at", [[], [1000], [1000, 1000, 1000]])
def test_history_without_a_span_of_time_is_not_drawn(at: list[int]) -> None:
    history = {"at": at, "cpu": [0.5] * len(at), "memory": [0.5] * len(at)}
    assert "<svg" not in render_node(ClusterNode.model_validate({**NODE, "history": history}))


def test_purposes_never_add_up_to_more_than_is_used() -> None:
    uses = {"serving": 6e9, "training": 6e9, "system": 6e9}
    node = {**NODE, "memory": {"used": 8e9, "total": 16e9, "uses": uses}}
    html = render_node(ClusterNode.model_validate(node))
    assert "Serving 6 GB Training 2 GB" in read_text(html)
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", html)]
    assert all(width <= 100 for width in widths)


def test_unknown_use_of_a_node_is_a_dash() -> None:
    text = read_text(render_node(ClusterNode(name="node 2")))
    assert text == "node 2 Processors – Memory – Disk –"


def test_gpus_are_shown_only_if_there_are_some() -> None:
    gpu = {"index": 0, "name": "H100", "share": 0.75, "memory_used": 40e9, "memory_total": 80e9}
    html = render_node(ClusterNode.model_validate({**NODE, "gpus": [gpu]}))
    assert "GPU 0, H100 75% busy, 40 GB of 80 GB" in read_text(html)
    reserved = {"total": 1, "training": 1, "serving": 0, "free": 0}
    with_gpus = ClusterState.model_validate({"nodes": [NODE], "gpus": reserved})
    assert "GPUs 1 of 1 reserved Training 1" in read_text(render_cluster(with_gpus, None))
    without = ClusterState.model_validate({"nodes": [NODE]})
    assert "GPU" not in render_cluster(without, None)


def test_models_and_runs_link_to_their_pages() -> None:
    state = ClusterState.model_validate(
        {
            "models": [
                {"id": "tuned", "deployment": "Generator", "memory_bytes": 3e8, "num_running": 2}
            ],
            "queue": [
                {"id": "ftjob-1", "status": "running", "name": "handbook"},
                {"id": "ftjob-2", "status": "queued", "waiting_for": "number 1 in the queue"},
            ],
        }
    )
    html = render_cluster(state, None)
    assert 'href="./models?model=tuned"' in html
    assert 'href="./runs?run=ftjob-1"' in html
    text = read_text(html)
    assert "tuned 300 MB 1 × Generator 2 running" in text
    assert "Fine-tune of a model Waiting number 1 in the queue" in text
    empty = read_text(render_cluster(ClusterState(), None))
    assert "No model is in memory." in empty
    assert "No run is waiting or running." in empty


def test_dashboard_is_linked_only_if_it_can_be_reached() -> None:
    assert "dashboard" not in render_cluster(ClusterState(), None)
    assert "dashboard" not in render_cluster(ClusterState(), "javascript:alert(1)")
    html = render_cluster(ClusterState(), "http://127.0.0.1:8265")
    assert '<a href="http://127.0.0.1:8265" target="_blank"' in html


def test_texts_of_cluster_are_escaped() -> None:
    gpu = {"index": 0, "name": HOSTILE}
    run = {"id": HOSTILE, "status": HOSTILE, "name": HOSTILE, "waiting_for": HOSTILE}
    state = ClusterState.model_validate(
        {
            "nodes": [{**NODE, "name": HOSTILE, "id": HOSTILE, "gpus": [gpu]}],
            "models": [{"id": HOSTILE, "deployment": HOSTILE}],
            "queue": [run],
        }
    )
    assert "<img" not in render_cluster(state, None)
