from pathlib import Path

import pytest

from training.run.run_metrics import RunMetrics


@pytest.fixture
def metrics(tmp_path: Path) -> RunMetrics:
    metrics = RunMetrics(tmp_path / "metrics.jsonl")
    for step in range(1, 7):
        metrics.add({"step": step, "loss": 1 / step})
    return metrics


def test_metrics_of_repeated_steps_are_dropped(metrics: RunMetrics) -> None:
    lines = metrics.path.read_bytes()
    metrics.drop_after(6)
    assert metrics.path.read_bytes() == lines
    metrics.drop_after(4)
    assert metrics.path.read_bytes() == b"".join(lines.splitlines(keepends=True)[:4])
    metrics.add({"step": 5, "loss": 0.5})
    assert [line["step"] for line in metrics.read()] == [1, 2, 3, 4, 5]
    metrics.drop_after(0)
    assert metrics.read() == []
    assert metrics.read_last() is None


def test_metrics_are_dropped_after_incomplete_last_line(metrics: RunMetrics) -> None:
    with metrics.path.open("a") as file:
        file.write('{"step":7,"lo')
    metrics.drop_after(5)
    assert [line["step"] for line in metrics.read()] == [1, 2, 3, 4, 5]


def test_drop_after_without_metrics_file_does_nothing(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics.jsonl")
    metrics.drop_after(5)
    assert not metrics.path.exists()
