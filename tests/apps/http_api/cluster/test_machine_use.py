"""The use of this machine."""

import time
from pathlib import Path

from apps.http_api.cluster.machine_use import NUM_SAMPLES, MachineMonitor, MachineUse


def test_use_has_plausible_figures(tmp_path: Path) -> None:
    found = MachineMonitor(tmp_path).read()
    assert found.num_cpus >= 1
    assert 0 <= found.cpu_share <= 1
    assert 0 < found.memory_used < found.memory_total
    assert 0 < found.disk_used < found.disk_total


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
