"""Pages of the rows of an evaluation, read with an index of their file."""

from pathlib import Path

import pytest

from apps.evaluations.evaluation_record import RowFilter, StoredAnswer, StoredRow
from apps.evaluations.evaluation_store import ROWS_NAME, EvaluationStore
from apps.evaluations.row_index import EvaluatedRowReader
from storage.layout import StorageLayout
from tests.apps.evaluations.conftest import add_stored

NUM_ROWS = 60


def write_rows(layout: StorageLayout, first: int, last: int) -> None:
    """Store rows of which every third has a wrong answer."""
    for number in range(first, last + 1):
        answer = StoredAnswer(model="tiny", text="b", exact_match=number % 3 > 0)
        row = StoredRow(
            id=f"row-{number}", file="f", number=number, prompt="a", expected="b", answers=(answer,)
        )
        EvaluationStore(layout).add_row("eval-1", row)


@pytest.fixture
def rows(layout: StorageLayout) -> Path:
    """The file of an evaluation with 60 rows."""
    add_stored(layout, "eval-1")
    path = layout.evaluations.find("eval-1") / ROWS_NAME
    path.unlink()
    write_rows(layout, 1, NUM_ROWS)
    return path


def read_numbers(
    reader: EvaluatedRowReader, limit: int, after: str | None = None, chosen: RowFilter = "all"
) -> tuple[list[int], bool]:
    page = reader.read_page("eval-1", limit, after, chosen)
    assert page is not None
    return [row.number for row in page.rows], page.has_more


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("all", list(range(1, NUM_ROWS + 1))),
        ("wrong", list(range(3, NUM_ROWS + 1, 3))),
        ("different", list(range(3, NUM_ROWS + 1, 3))),
    ],
)
def test_each_row_of_a_filter_is_on_exactly_one_page(
    layout: StorageLayout, rows: Path, chosen: RowFilter, expected: list[int]
) -> None:
    reader = EvaluatedRowReader(layout)
    found: list[int] = []
    has_more = True
    while has_more:
        after = f"row-{found[-1]}" if found else None
        page, has_more = read_numbers(reader, 7, after, chosen)
        found += page
    assert found == expected
    assert read_numbers(reader, 2, "row-31", "wrong") == ([33, 36], True)


def test_rows_that_are_added_appear(layout: StorageLayout, rows: Path) -> None:
    reader = EvaluatedRowReader(layout)
    assert read_numbers(reader, 5, "row-58") == ([59, 60], False)
    assert reader.read_page("eval-1", 5, "row-61", "all") is None
    with rows.open("ab") as file:
        file.write(b'{"id": "row-61", "numb')  # cut by a crash
    assert read_numbers(reader, 5, "row-58") == ([59, 60], False)
    write_rows(layout, 61, 62)
    assert read_numbers(reader, 5, "row-58") == ([59, 60, 61, 62], False)
    assert read_numbers(reader, 5, "row-58", "wrong") == ([60], False)


def test_replaced_file_is_read_from_its_start(layout: StorageLayout, rows: Path) -> None:
    reader = EvaluatedRowReader(layout)
    assert read_numbers(reader, 1, "row-59") == ([60], False)
    rows.rename(rows.with_name("old"))
    assert reader.read_page("eval-1", 1, None, "all") == ([], False)
    assert reader.read_page("eval-1", 1, "row-1", "all") is None
    write_rows(layout, 101, 103)
    assert read_numbers(reader, 5) == ([101, 102, 103], False)
    assert reader.read_page("eval-1", 1, "row-59", "all") is None


def test_indexes_of_the_most_recent_evaluations_are_kept(
    layout: StorageLayout, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.evaluations.row_index._MAX_INDEXES", 1)
    reader = EvaluatedRowReader(layout)
    add_stored(layout, "eval-2")
    for _ in range(2):
        assert read_numbers(reader, 1, "row-3") == ([4], True)
        page = reader.read_page("eval-2", 1, None, "all")
        assert page is not None
        assert [row.prompt for row in page.rows] == ["a"]
