"""Statistics of rows on the page: while they are made, and what they list."""

import pytest

from apps.client.row_resources import FileStatistics, RowFinding
from apps.ui.fine_tune.data.row_statistics import (
    MAX_LISTED,
    READING,
    read_statistics,
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


@pytest.fixture(autouse=True)
def rows(api: StubApi) -> None:
    api.rows.rows["file-handbook"] = [{"text": "a"}] * 3
    api.rows.lengths = LENGTHS
    api.rows.faults = [make_finding(4, 5, "not JSON", "")]


def read(api: StubApi) -> tuple[FileStatistics, str]:
    return ask(api, lambda client: read_statistics(client, "base", "file-handbook", {}))


def test_statistics_are_shown_once_the_rows_are_read(api: StubApi) -> None:
    api.rows.num_running = 1
    found, html = read(api)
    assert found.is_running
    assert READING in html
    found, html = read(api)
    assert not found.is_running
    assert (found.num_faulty_rows, found.num_duplicate_rows) == (1, 0)
    assert "<svg" in html
    assert "Row 4 (line 5)" in html


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
