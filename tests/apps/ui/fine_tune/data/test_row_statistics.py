"""Statistics of rows on the page: while they are made, what they list, and downloads."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import gradio as gr
import pytest

from apps.client.client import ApiClient
from apps.client.row_resources import FileStatistics, RowFinding
from apps.ui.fine_tune.data import row_statistics
from apps.ui.fine_tune.data.row_statistics import (
    MAX_LISTED,
    RowStatistics,
    StatisticsWatch,
    render_statistics,
)
from tests.apps.stub_api import HOSTILE, StubApi, ask
from tests.apps.stub_rows import make_finding

LENGTHS = {
    "num_samples": 3,
    "min": 1,
    "median": 2,
    "mean": 2.0,
    "percentile_95": 3,
    "max": 3,
    "num_over_limit": 0,
    "bin_width": 1,
    "counts": [0, 1, 1, 1],
    "num_longer": 0,
}
Call = Callable[[Callable[[RowStatistics], Awaitable[Any]]], Any]


@pytest.fixture
def call(api: StubApi, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setattr(row_statistics, "_INTERVAL_S", 0.0)
    api.rows.rows["file-handbook"] = [{"text": "a"}] * 3
    api.rows.lengths = LENGTHS

    def call_handler(use: Callable[[RowStatistics], Awaitable[Any]]) -> Any:
        async def run(client: ApiClient) -> Any:
            with gr.Blocks(analytics_enabled=False):
                statistics = RowStatistics(client)
            return await use(statistics)

        return ask(api, run)

    return call_handler


async def read_all(statistics: RowStatistics, watch: StatisticsWatch) -> list[Any]:
    shown = statistics.show_statistics(watch, "base", "file-handbook", {}, None)
    return [one async for one in shown]


def test_rows_are_read_until_the_statistics_are_complete(call: Call, api: StubApi) -> None:
    api.rows.num_running = 2
    api.rows.faults = [make_finding(4, 5, "not JSON", "")]
    steps = call(lambda statistics: read_all(statistics, StatisticsWatch()))
    assert [row_statistics.READING in html for html, *_ in steps] == [True, False]
    assert api.rows.num_running == 0
    html, faults, duplicates = steps[-1]
    assert "<svg" in html
    assert "Row 4 (line 5)" in html
    assert (faults.visible, duplicates.visible) == (True, False)


def test_later_question_ends_an_earlier_one(call: Call, api: StubApi) -> None:
    api.rows.num_running = 5

    async def ask_twice(statistics: RowStatistics) -> tuple[int, list[Any]]:
        watch = StatisticsWatch()
        first = statistics.show_statistics(watch, "base", "file-handbook", {}, None)
        await anext(first)
        second = await read_all(statistics, watch)
        return len([one async for one in first]), second

    num_more, second = call(ask_twice)
    assert num_more == 0
    assert "<svg" in second[-1][0]


def test_invalid_setting_and_missing_choice_are_explained(call: Call) -> None:
    async def read(statistics: RowStatistics) -> list[Any]:
        defaults = {
            "task": "causal_lm",
            "tasks": ["causal_lm"],
            "training": {"columns": {}},
            "schema": {"columns": {"type": "object"}},
        }
        entered = {"columns": "{'a': 'b'}"}
        asked = statistics.show_statistics(
            StatisticsWatch(), "base", "file-handbook", entered, defaults
        )
        nothing = statistics.show_statistics(StatisticsWatch(), "base", None, {}, None)
        return [html async for html, *_ in asked] + [html async for html, *_ in nothing]

    _, wrong, missing = call(read)
    assert "Columns is not JSON" in wrong
    assert row_statistics.NO_DATA in missing


def test_faulty_rows_are_downloaded_as_csv(call: Call, api: StubApi) -> None:
    api.rows.faults = [make_finding(4, 5, "not JSON", "")]

    async def download(statistics: RowStatistics) -> str:
        return await statistics.download_faults("base", "file-handbook", {}, None)

    saved = json.loads(call(download))
    assert saved == {
        "name": "file-handbook-faults.csv",
        "text": "number,line,reason\n4,5,not JSON",
    }


def test_lists_name_how_many_rows_are_not_shown() -> None:
    rows = [RowFinding(number=number) for number in range(1, MAX_LISTED + 1)]
    found = FileStatistics(status="completed", num_rows=900, num_faulty_rows=100)
    html = render_statistics(found, rows, [])
    assert f"Faulty rows (100, the first {MAX_LISTED})" in html
    assert "Equal rows" not in html
    assert "Only the first 0 rows were compared" in html


def test_hostile_reasons_and_contents_are_escaped() -> None:
    row = RowFinding(number=1, reason=HOSTILE, content=HOSTILE)
    found = FileStatistics(status="completed", num_faulty_rows=1, num_duplicate_rows=1)
    assert "<img" not in render_statistics(found, [row], [row])
