import json
import time
from pathlib import Path

import httpx
import pytest

from apps.fine_tuning.index.metrics_index import MetricsReader
from storage.layout import StorageLayout
from tests.apps.conftest import add_job

pytestmark = pytest.mark.anyio


def write_steps(path: Path, first: int, last: int, every: int = 1000) -> None:
    with path.open("a") as file:
        for step in range(first, last + 1):
            extra = {"eval_loss": 1.0} if step % every == 0 else {}
            file.write(json.dumps({"step": step, "loss": 2.0, "tokens": 9, **extra}) + "\n")


async def test_metrics_route_thins_metrics(
    client: httpx.AsyncClient, layout: StorageLayout
) -> None:
    run = add_job(layout, "tiny")
    path = f"/v1/fine_tuning/jobs/{run.path.name}/metrics"
    assert (await client.get(path)).json() == {"object": "list", "data": []}
    write_steps(run.metrics.path, 1, 5000)
    whole = (await client.get(path)).json()["data"]
    assert [line["step"] for line in whole] == list(range(1, 5001))
    thinned = (await client.get(path, params={"max_points": 100})).json()["data"]
    assert 25 < len(thinned) <= 100
    assert (thinned[0], thinned[-1]) == (whole[0], whole[-1])
    assert all(whole[line["step"] - 1] == line for line in thinned)
    assert [line["step"] for line in thinned if "eval_loss" in line] == [
        1000,
        2000,
        3000,
        4000,
        5000,
    ]
    later = {"max_points": 3, "after_step": 4000}
    assert [line["step"] for line in (await client.get(path, params=later)).json()["data"]] == [
        4001,
        5000,
    ]
    assert (await client.get(path, params={"max_points": 1})).status_code in (400, 422)


def test_thinning_selects_same_steps_as_file_grows(tmp_path: Path) -> None:
    path, reader = tmp_path / "metrics.jsonl", MetricsReader()
    write_steps(path, 1, 3000)
    before = [line["step"] for line in reader.read(path, 0, 200)]
    assert [line["step"] for line in reader.read(path, 0, 200)] == before
    write_steps(path, 3001, 3010)
    after = [line["step"] for line in reader.read(path, 0, 200)]
    assert after[: len(before) - 1] == before[:-1]
    with path.open("a") as file:
        file.write('{"step": 3011, "lo')  # a partially written line
    assert reader.read(path)[-1]["step"] == 3010


def test_replaced_metrics_file_is_read_from_start(tmp_path: Path) -> None:
    path, reader = tmp_path / "metrics.jsonl", MetricsReader()
    write_steps(path, 1, 50)
    assert len(reader.read(path)) == 50
    path.rename(tmp_path / "old")
    write_steps(path, 1, 20)
    write_steps(path, 21, 60, every=7)
    assert [line["step"] for line in reader.read(path, 55)] == [56, 57, 58, 59, 60]
    assert len(reader.read(path)) == 60


def test_second_read_of_long_metrics_file_is_fast(tmp_path: Path) -> None:
    path, reader = tmp_path / "metrics.jsonl", MetricsReader()
    write_steps(path, 1, 100_000)
    reader.read(path, 0, 500)
    took_s = []
    for step in range(100_001, 100_006):
        write_steps(path, step, step)
        started = time.thread_time()
        lines = reader.read(path, 0, 500)
        took_s.append(time.thread_time() - started)
        assert lines[-1]["step"] == step
    assert min(took_s) < 0.05
