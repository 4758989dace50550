import socket
from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from training.cluster.cluster_state import describe_unreachable, find_cluster_loss


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A listening socket that simulates this process's cluster and sends no response."""

    class Context:
        gcs_address = ""
        worker = SimpleNamespace(mode=None)

        def get_id(self) -> str:  # for Ray's log filter, which an earlier test may have added
            return ""

        get_job_id = get_worker_id = get_node_id = get_id

    with socket.create_server(("127.0.0.1", 0)) as server:
        Context.gcs_address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "get_runtime_context", Context)
        yield server


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the request for the nodes block."""
    may_return = Event()

    def list_nodes() -> list[dict[str, Any]]:
        may_return.wait()
        return []

    monkeypatch.setattr(ray, "nodes", list_nodes)
    monkeypatch.setattr("training.cluster.cluster_state.ANSWER_TIMEOUT_S", 0.1)
    yield
    may_return.set()


@pytest.mark.usefixtures("cluster")
def test_cluster_is_lost_when_no_node_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": False}, {"Alive": True}])
    assert find_cluster_loss() is None
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": False}])
    assert find_cluster_loss() == "no node of the Ray cluster is alive"


@pytest.mark.usefixtures("cluster", "hangs")
def test_unresponsive_cluster_is_not_reported_as_ended() -> None:
    assert find_cluster_loss() == "the Ray cluster did not answer for 0.1 s"


@pytest.mark.usefixtures("hangs")
def test_cluster_with_closed_port_is_reported_as_ended(cluster: socket.socket) -> None:
    port = cluster.getsockname()[1]
    cluster.close()
    expected = f"the Ray cluster at 127.0.0.1:{port} has ended: nothing listens there"
    assert find_cluster_loss() == expected


def test_failed_nodes_request_is_reported(
    cluster: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise TimeoutError("too slow")

    monkeypatch.setattr(ray, "nodes", fail)
    assert find_cluster_loss() == "the Ray cluster cannot be asked for its nodes: too slow"
    cluster.close()
    assert "has ended: nothing listens there" in (find_cluster_loss() or "")


def test_unreachable_cluster_is_not_reported_as_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This happens with a broken network."""

    def connect(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", connect)
    reason = describe_unreachable("10.0.0.1:6379")
    assert reason == "the Ray cluster at 10.0.0.1:6379 cannot be reached: timed out"
