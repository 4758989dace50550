"""The rows of a file on the page: pages, search, long texts, and hostile values."""

from collections.abc import Callable
from typing import Any

import pytest

from apps.client.row_resources import FileRow, FileRowPage, RowValue
from apps.ui.fine_tune.data.preview import name_row
from apps.ui.fine_tune.data.row_browser import (
    PAGE_ROWS,
    SHORT_CHARACTERS,
    mark_found,
    read_rows,
    render_rows,
)
from tests.apps.stub_api import HOSTILE, StubApi, ask

HANDBOOK = "file-handbook"


@pytest.fixture
def read(api: StubApi) -> Callable[..., FileRowPage]:
    api.rows.rows[HANDBOOK] = [{"text": f"row {number}."} for number in range(1, 46)]

    def call(after: str = "", search: str = "") -> FileRowPage:
        return ask(api, lambda client: read_rows(client, HANDBOOK, after, search))

    return call


def make_page(*values: RowValue, **changes: Any) -> FileRowPage:
    row = FileRow(**{"id": "1-2-3", "number": 1, "line": 2, "values": values, **changes})
    return FileRowPage(data=(row,))


def test_pages_follow_each_other(read: Any) -> None:
    page = read()
    assert f"Rows 1 to {PAGE_ROWS}, and there are more." in render_rows(page)
    page = read(page.next_after)
    assert "Rows 21 to 40" in render_rows(page)
    page = read(page.next_after)
    assert "Rows 41 to 45, the last ones." in render_rows(page)
    assert not page.has_more


def test_search_of_large_file_continues_until_something_is_found(read: Any, api: StubApi) -> None:
    api.rows.max_scanned = 10
    html = render_rows(read(search="ROW 33."), "ROW 33.")
    assert "Row 33 that contains" in html
    assert "<mark>row 33.</mark>" in html
    assert [one["after"] for one in api.rows.asked] == ["0-0-0", "10-10-0", "20-20-0", "30-30-0"]


def test_search_without_result_can_be_continued(read: Any, api: StubApi) -> None:
    api.rows.max_scanned = 5
    page = read(search="row 45.")
    assert "No row up to row 20 contains" in render_rows(page, "row 45.")
    assert page.has_more
    assert "No row up to row 40 contains" in render_rows(read(page.next_after, "row 45."), "row")
    api.rows.max_scanned = 100
    assert "No more rows contain “nowhere”." in render_rows(read(search="nowhere"), "nowhere")


def test_row_is_named_by_number_and_line() -> None:
    assert name_row(1, 1) == "Row 1"
    assert name_row(1, 2) == "Row 1 (line 2)"
    assert name_row(1200, 0) == "Row 1,200"
    assert name_row(None, 7) == "Line 7"
    assert "Row 1 (line 2)" in render_rows(make_page())


def test_long_text_opens_on_click_and_names_the_rest() -> None:
    text = "x" * (SHORT_CHARACTERS + 80)
    html = render_rows(
        make_page(RowValue(name="user", kind="turn", text=text, num_characters=9000))
    )
    assert "<details><summary>" in html
    assert f"… {9000 - len(text):,} more characters" in html
    short = render_rows(make_page(RowValue(name="a", text="short", num_characters=5)))
    assert "<details>" not in short


def test_hostile_rows_are_escaped() -> None:
    value = RowValue(name=HOSTILE, kind="turn", text=HOSTILE * 20, num_characters=9000)
    for html in (
        render_rows(make_page(value), HOSTILE),
        render_rows(make_page(value), "img"),
        render_rows(make_page(fault=HOSTILE)),
        render_rows(FileRowPage(), HOSTILE),
    ):
        assert "<img" not in html


def test_more_values_than_shown_are_counted() -> None:
    assert "… 3 more" in render_rows(make_page(RowValue(name="a", text="b"), num_values=4))


def test_search_marks_each_place_in_any_case() -> None:
    assert mark_found("An answer, another ANSWER & <b>", "answer") == (
        "An <mark>answer</mark>, another <mark>ANSWER</mark> &amp; &lt;b&gt;"
    )
    assert mark_found("İstanbul", "i") == "İstanbul", "a letter whose lower case is longer"
