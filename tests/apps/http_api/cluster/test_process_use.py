"""The purposes of processes, by the titles that Ray gives to its workers."""

import os

import psutil
import pytest

from apps.http_api.cluster import process_use
from apps.http_api.cluster.process_use import (
    ProcessInfo,
    ProcessMonitor,
    PurposeUse,
    assign_purposes,
    list_shares,
)


def make(pid: int, parent: int, title: str) -> ProcessInfo:
    return ProcessInfo(pid, parent, title, 1, 0.0)


def test_untitled_process_has_purpose_of_its_ancestor() -> None:
    tree = {
        "python -m apps.server.serve_command run deploy.yaml": (1, 0, "system"),
        "gcs_server": (2, 1, "system"),
        "raylet": (3, 1, "system"),
        "ray::DashboardAgent": (4, 3, "system"),
        "ray::IDLE": (5, 3, "system"),
        "ray::ServeReplica:tuneserve:Generator": (6, 3, "serving"),
        "python fork server": (7, 6, "serving"),
        "python engine": (8, 7, "serving"),
        "ray::ProxyActor": (9, 3, "serving"),
        "ray::JobSupervisor": (10, 3, "training"),
        "sh -c env python -m apps.fine_tuning.cluster.job_main": (11, 10, "training"),
        "ray::RayTrainWorker": (12, 3, "training"),
        "python compiler": (13, 12, "training"),
    }
    processes = [make(pid, parent, title) for title, (pid, parent, _) in tree.items()]
    assert list(assign_purposes(processes)) == [purpose for *_, purpose in tree.values()]


def test_cycle_of_parents_ends() -> None:
    assert list(assign_purposes([make(1, 2, "a"), make(2, 1, "b")])) == ["system", "system"]


def test_process_outside_of_ray_has_no_cluster() -> None:
    assert ProcessMonitor().read() is None


def test_second_reading_has_processor_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    own = psutil.Process(os.getpid())
    monkeypatch.setattr(process_use, "_find_cluster_root", lambda: own)
    monitor = ProcessMonitor()
    first = monitor.read()
    assert first is not None
    assert first["system"].memory_bytes > 1_000_000
    assert list_shares(first) is None
    sum(number * number for number in range(2_000_000))
    second = monitor.read()
    assert second is not None
    shares = list_shares(second)
    assert shares is not None
    assert 0 < shares["system"] <= 1
    assert shares["training"] == 0
    assert second["serving"] == PurposeUse(0, 0.0)
