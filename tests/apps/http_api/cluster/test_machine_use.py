"""The use of this machine."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from apps.http_api.cluster import machine_use
from apps.http_api.cluster.machine_use import NUM_SAMPLES, MachineMonitor, MachineUse


def test_use_has_plausible_figures(tmp_path: Path) -> None:
    found = MachineMonitor(tmp_path).read()
    assert found.num_cpus >= 1
    assert 0 <= found.cpu_share <= 1
    assert 0 < found.memory_used < found.memory_total
    assert 0 < found.disk_used < found.disk_total


def test_processors_are_measured_since_the_last_reading_of_any_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = type(psutil.cpu_times())
    none = dict.fromkeys(times._fields, 0.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(**none))
    monitor = MachineMonitor(tmp_path)
    monkeypatch.setattr(machine_use, "_MIN_AGE_S", 0.0)
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        spent = none | {"user": 2.0, "guest": 2.0, "system": 1.0, "idle": 0.5, "iowait": 0.5}
        monkeypatch.setattr(psutil, "cpu_times", lambda: times(**spent))
        assert first.submit(monitor.read).result().cpu_share == 0.75
        spent |= {"user": 3.0, "guest": 3.0, "idle": 3.5}
        assert second.submit(monitor.read).result().cpu_share == 0.25
        assert first.submit(monitor.read).result().cpu_share == 0.25, "no time has passed"
    monitor.record()
    assert monitor.list_history()[-1].cpu == 0.5, "of the whole time since the last record"


def test_processors_are_measured_after_their_times_began_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_use, "_MIN_AGE_S", 0.0)
    totals = iter([(500.0, 1000.0)] * 2 + [(1.0, 2.0), (4.0, 6.0)])
    monkeypatch.setattr(machine_use, "_read_processor_times", lambda: next(totals))
    monitor = MachineMonitor(tmp_path)
    monitor.read()
    assert monitor.read().cpu_share == 0.75


def test_history_keeps_the_newest_samples(tmp_path: Path) -> None:
    monitor = MachineMonitor(tmp_path)
    assert monitor.list_history() == []
    for _ in range(NUM_SAMPLES + 1):
        monitor.record()
    assert len(monitor.list_history()) == NUM_SAMPLES
    sample = monitor.list_history()[-1]
    assert 0 < sample.memory < 1


def test_sample_has_its_time_and_rounded_shares() -> None:
    begun = int(time.time())
    sample = MachineUse(2.0, 0.123456, 1, 3, 0, 0).to_sample()
    assert begun <= sample.at <= time.time()
    assert (sample.cpu, sample.memory) == (0.123, 0.333)
