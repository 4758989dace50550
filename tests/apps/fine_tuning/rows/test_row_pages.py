"""Pages of rows: numbers and lines, search, where the next page begins, and bounded time."""

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apps.errors import ApiError, InvalidInputError
from apps.file_store import FileStore
from apps.fine_tuning.rows import row_pages
from apps.fine_tuning.rows.row_pages import RowPageObject, RowQuery, read_page
from storage.layout import StorageLayout
from tests.tiny_vision import draw_shape

Add = Callable[[str, bytes], str]
NUM_ROWS = 7


@pytest.fixture
def add(layout: StorageLayout) -> Add:
    def add_file(name: str, content: bytes) -> str:
        FileStore(layout).add("file-x", content, name)
        return "file-x"

    return add_file


def make_records() -> list[dict[str, str]]:
    # A cell with a line end: in a table, the next row is two lines later.
    return [{"prompt": f"q{n}", "completion": f"a{n}\nä"} for n in range(1, NUM_ROWS + 1)]


def make_file(kind: str, folder: Path) -> tuple[str, bytes]:
    records = make_records()
    lines = "".join(f"{json.dumps(one)}\n" for one in records).encode()
    if kind == "csv":
        cells = "".join(f'{one["prompt"]},"{one["completion"]}"\n' for one in records)
        return "rows.csv", f"\ufeffprompt,completion\n{cells}".encode()
    if kind == "json":
        return "rows.json", json.dumps(records, indent=1).encode()
    if kind == "jsonl.gz":
        return "rows.jsonl.gz", gzip.compress(lines)
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), folder / "rows.parquet")
        return "rows.parquet", (folder / "rows.parquet").read_bytes()
    if kind == "txt":
        return "rows.txt", "".join(f"text {n}\n\n" for n in range(1, NUM_ROWS + 1)).encode()
    return "rows.jsonl", b"\n" + lines.replace(b"\n", b"\n\n", 2)


def read_all(layout: StorageLayout, limit: int, **query: Any) -> list[Any]:
    rows: list[Any] = []
    after = None
    while True:
        page = read_page(layout, "file-x", RowQuery(after, limit=limit, **query))
        rows += page["data"]
        assert len(page["data"]) <= limit
        if not page["has_more"]:
            return rows
        after = page["next_after"]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "json", "jsonl.gz", "parquet", "txt"])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_have_each_row_once_with_number_and_line(
    layout: StorageLayout, add: Add, tmp_path: Path, kind: str, limit: int
) -> None:
    add(*make_file(kind, tmp_path))
    whole = read_page(layout, "file-x", RowQuery(limit=100))["data"]
    assert read_all(layout, limit) == whole
    assert [row["number"] for row in whole] == list(range(1, NUM_ROWS + 1))
    lines = {
        "csv": [2, 4, 6, 8, 10, 12, 14],
        "txt": [1, 3, 5, 7, 9, 11, 13],
        "json": [2, 6, 10, 14, 18, 22, 26],
        "jsonl": [2, 4, 6, 7, 8, 9, 10],
    }
    assert [row["line"] for row in whole] == lines.get(kind, list(range(1, NUM_ROWS + 1)))


def test_next_page_begins_at_place_in_file(
    layout: StorageLayout, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("rows.jsonl", b"".join(b'{"text": "%d"}\n' % number for number in range(1, 5000)))
    near = read_page(layout, "file-x", RowQuery("4000-4000-0"))["data"][0]
    assert near["number"] == 4001, "an id without a place is still a row"
    before = b"".join(b'{"text": "%d"}\n' % number for number in range(1, 4000))
    page = read_page(layout, "file-x", RowQuery(f"4000-4000-{len(before)}", limit=1))
    (row,) = page["data"]
    assert (row["number"], row["line"], row["values"][0]["text"]) == (4001, 4001, "4001")
    assert page["has_more"]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_search_finds_rows_in_any_case(
    layout: StorageLayout, add: Add, tmp_path: Path, kind: str
) -> None:
    add(*make_file(kind, tmp_path))
    assert [row["number"] for row in read_all(layout, 2, search="Q3")] == [3]
    assert [row["number"] for row in read_all(layout, 2, search="Ä")] == list(range(1, 8))
    assert read_all(layout, 2, search="nowhere") == []


def test_chat_becomes_turns_and_other_keys_columns(layout: StorageLayout, add: Add) -> None:
    chat = [
        {"role": "user", "content": "Hi\nthere"},
        {"role": "assistant", "content": [{"type": "text", "text": "A"}]},
    ]
    row = {"messages": chat, "source": "mail", "empty": None, "score": 3}
    add("rows.jsonl", f"{json.dumps(row)}\n".encode())
    page = read_page(layout, "file-x", RowQuery())
    assert page["columns"] == ["messages", "source", "empty", "score"]
    values = [(one["kind"], one["name"], one["text"]) for one in page["data"][0]["values"]]
    assert values == [
        ("turn", "user", "Hi\nthere"),
        ("turn", "assistant", '[{"type": "text", "text": "A"}]'),
        ("column", "source", "mail"),
        ("column", "score", "3"),
    ]


def test_long_rows_are_cut(layout: StorageLayout, add: Add) -> None:
    row = {"text": "x" * 5000, **{f"c{number}": "y" * 100 for number in range(60)}}
    add("rows.jsonl", f"{json.dumps(row)}\n".encode())
    (shown,) = read_page(layout, "file-x", RowQuery(max_characters=200))["data"]
    assert sum(len(value["text"]) for value in shown["values"]) == 200
    assert shown["values"][0]["num_characters"] == 5000
    assert (len(shown["values"]), shown["num_values"]) == (40, 61)


def test_unreadable_row_has_its_fault(layout: StorageLayout, add: Add) -> None:
    add("rows.jsonl", b'{"text": "a"}\n{broken\n{"text": "\\ud800"}\n')
    rows = read_page(layout, "file-x", RowQuery())["data"]
    assert [bool(row["fault"]) for row in rows] == [False, True, False]
    assert "not JSON" in str(rows[1]["fault"])
    json.dumps(rows, ensure_ascii=False).encode()  # half of a surrogate pair is replaced


@pytest.mark.parametrize(
    "after", ["7", "1-2", "1-2-3-4", "-1-2-3", "a-b-c", "1-2-" + "9" * 30, "1-2-999", "0-1-0", ""]
)
def test_invalid_id_is_refused(layout: StorageLayout, add: Add, after: str) -> None:
    add("rows.jsonl", b'{"text": "a"}\n')
    with pytest.raises(ApiError, match="expected the id of a row") as refused:
        read_page(layout, "file-x", RowQuery(after))
    assert (refused.value.status, refused.value.param) == (400, "after")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "json", "jsonl.gz", "parquet", "txt"])
def test_any_place_in_file_is_harmless(
    layout: StorageLayout, add: Add, tmp_path: Path, kind: str
) -> None:
    add(*make_file(kind, tmp_path))
    for place in ("1-1-1", "3-5-17", "3-5-20", "999999999999-1-0", "2-2-90", "1-0-0"):
        with suppress(InvalidInputError):
            assert len(read_page(layout, "file-x", RowQuery(place))["data"]) <= NUM_ROWS


def test_reading_ends_at_deadline_and_continues(
    layout: StorageLayout, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("rows.jsonl", b'{"text": "a"}\n' * 100 + b'{"text": "needle"}\n')
    clock = iter(range(10**6))
    monkeypatch.setattr("apps.fine_tuning.rows.row_pages.time.monotonic", lambda: next(clock) / 10)
    found: list[Any] = []
    after, num_pages = None, 0
    while True:
        page: RowPageObject = read_page(layout, "file-x", RowQuery(after, "needle"))
        found += page["data"]
        num_pages += 1
        if not page["has_more"]:
            break
        assert page["next_after"] != after
        after = page["next_after"]
    assert [row["number"] for row in found] == [101]
    assert num_pages > 2


def test_file_without_rows_for_too_long_is_refused(
    layout: StorageLayout, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("rows.jsonl", b"\n" * 1_000_000)
    monkeypatch.setattr(row_pages, "MAX_READ_S", 0.0)
    with pytest.raises(InvalidInputError, match="no row at the beginning could be read within 0 s"):
        read_page(layout, "file-x", RowQuery())


def test_archive_of_images_has_paths_and_labels(layout: StorageLayout, add: Add) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("red/1.png", "blue/1.png", "red/2.png"):
            picture = io.BytesIO()
            draw_shape(name.partition("/")[0], 1).save(picture, "PNG")
            archive.writestr(name, picture.getvalue())
    add("shapes.zip", packed.getvalue())
    rows = read_all(layout, 2)
    shown = [[value["text"] for value in row["values"]] for row in rows]
    assert shown == [["blue/1.png", "blue"], ["red/1.png", "red"], ["red/2.png", "red"]]


def test_odd_names_of_columns_can_be_sent(layout: StorageLayout, add: Add) -> None:
    add("rows.jsonl", json.dumps({"\ud800": "a", "x" * 300: "b", "c": "d"}).encode() + b"\n")
    assert read_page(layout, "file-x", RowQuery())["columns"] == ["?", "c"]


def test_other_files_are_refused(layout: StorageLayout, add: Add) -> None:
    FileStore(layout).add("file-x", b"step\n1\n", "step_metrics.csv", "fine-tune-results")
    with pytest.raises(InvalidInputError, match="expected a file of rows"):
        read_page(layout, "file-x", RowQuery())
    with pytest.raises(ApiError, match="file-gone"):
        read_page(layout, "file-gone", RowQuery())
    add("rows.bin", b"%PDF-1.4")
    with pytest.raises(InvalidInputError, match=r"rows\.bin is not text but a PDF"):
        read_page(layout, "file-x", RowQuery())
