"""The columns of figures that the page draws as curves."""

from apps.client.resources import Metrics, read_resources
from apps.ui.runs.curves import (
    MAX_FIRST_POINTS,
    MAX_POINTS,
    CurveUpdate,
    read_curves,
    select_columns,
)
from apps.ui.tab_state import CurveEnd
from tests.apps.stub_api import StubApi, ask
from tests.apps.stub_runs import make_metrics


def parse(*entries: dict[str, object]) -> list[Metrics]:
    return read_resources(Metrics, entries)


def read(api: StubApi, end: CurveEnd) -> CurveUpdate:
    return ask(api, lambda client: read_curves(client, "ftjob-1", end))


def test_figures_of_steps_become_columns() -> None:
    metrics = parse(
        {"step": 1, "loss": 2.123456789, "num_steps": 9, "grad_norm": float("inf"), "note": "x"},
        {"step": 2, "loss": None, "eval_accuracy": 0.5, "created_at": 1.0},
    )
    assert select_columns(metrics) == {
        "step": [1, 2],
        "eval_accuracy": [None, 0.5],
        "loss": [2.1235, None],
    }
    assert select_columns(metrics, ["loss"]) == {"step": [1, 2], "loss": [2.1235, None]}


def test_only_new_steps_are_sent(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    api.runs.metrics["ftjob-1"] = make_metrics(40)
    addition, end = read(api, CurveEnd())
    assert addition is not None
    assert addition["is_whole"]
    assert len(addition["columns"]["loss"]) == 40
    assert read(api, end) == (None, end)
    api.runs.metrics["ftjob-1"] = make_metrics(40)[:40] + make_metrics(43)[40:]
    addition, end = read(api, end)
    assert addition is not None
    assert not addition["is_whole"]
    assert addition["columns"]["step"] == [41, 42, 43]
    assert end.num_points == 43


def test_steps_that_are_taken_again_replace_all(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    api.runs.metrics["ftjob-1"] = make_metrics(40)
    _, end = read(api, CurveEnd())
    again = [{**line, "loss": 9.0} for line in make_metrics(40)[:30]]
    api.runs.metrics["ftjob-1"] = again
    addition, end = read(api, end)
    assert addition is not None
    assert addition["is_whole"]
    assert addition["columns"]["loss"] == [9.0] * 30
    assert end.num_points == 30


def test_long_run_is_thinned_at_first_and_when_it_has_grown(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    api.runs.metrics["ftjob-1"] = make_metrics(100_000)
    addition, end = read(api, CurveEnd())
    assert addition is not None
    assert len(addition["columns"]["step"]) <= MAX_FIRST_POINTS
    assert addition["columns"]["step"][-1] == 100_000
    addition, _ = read(api, CurveEnd(MAX_POINTS, end.last))
    assert addition is not None
    assert addition["is_whole"]


def test_run_without_steps_sends_nothing(api: StubApi) -> None:
    api.add_job("ftjob-1", "queued")
    assert read(api, CurveEnd()) == (None, CurveEnd())
