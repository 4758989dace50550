"""The small loss curves of the list."""

import asyncio

import pytest

from apps.client.client import ApiClient
from apps.client.resources import Metrics, read_resources
from apps.ui.runs.sparklines import Sparkline, Sparklines, draw, summarise
from tests.apps.stub_api import StubApi, ask

METRICS = read_resources(
    Metrics,
    [
        {"step": 1, "loss": 4.0, "eval_accuracy": 0.5, "eval_loss": 3.0},
        {"step": 2, "loss": float("nan")},
        {"step": 3, "loss": 2.0, "eval_loss": 1.5},
    ],
)


def test_losses_and_newest_figure_of_evaluations_are_found() -> None:
    assert summarise(METRICS, "loss") == Sparkline((4.0, 2.0), "loss", 1.5)
    assert summarise(METRICS, "eval_accuracy") == Sparkline((4.0, 2.0), "accuracy", 0.5)
    assert summarise(METRICS, "f1") == Sparkline((4.0, 2.0), "f1", None)


def test_line_is_drawn_from_two_points_on() -> None:
    assert draw([1.0]) == ""
    assert 'points="1,2 22,12 43,22"' in draw([3.0, 2.0, 1.0], width=44)
    assert "nan" not in draw([2.0, 2.0])


def test_metrics_of_runs_are_read_once(api: StubApi) -> None:
    api.add_job("ftjob-1", "succeeded", progress={"step": 5})
    api.add_job("ftjob-2", "queued")
    sparklines = Sparklines()

    async def find(client: ApiClient) -> dict[str, Sparkline]:
        jobs = (await client.jobs.list_page(10)).jobs
        return await sparklines.find(client, jobs)

    first = ask(api, find)
    assert list(first) == ["ftjob-1"]
    assert len(first["ftjob-1"].losses) == 5
    api.queries.clear()
    assert ask(api, find) == first
    assert api.queries == []
    api.jobs["ftjob-1"]["status"] = "running"  # it was resumed
    ask(api, find)
    assert [name for name, _ in api.queries] == ["metrics"]


def test_list_does_not_wait_for_slow_metrics(api: StubApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.ui.runs.sparklines.PATIENCE_S", 0.0)
    api.add_job("ftjob-1", "succeeded", progress={"step": 5})

    async def find(client: ApiClient) -> list[dict[str, Sparkline]]:
        sparklines = Sparklines()
        jobs = (await client.jobs.list_page(10)).jobs
        first = await sparklines.find(client, jobs)
        async with asyncio.timeout(20):
            while not (later := await sparklines.find(client, jobs)):
                await asyncio.sleep(0.01)
        return [first, later]

    first, later = ask(api, find)
    assert first == {}
    assert list(later) == ["ftjob-1"]
    assert len(api.queries) == 1
