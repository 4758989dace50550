"""Routes of rows: pages, statistics, faulty and equal rows, and what is refused."""

import csv
import io
import json
from typing import Any

import pytest

from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.file_store import FileStore
from apps.fine_tuning.rows import file_rows
from apps.fine_tuning.rows.file_rows import survey_file
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from apps.http_api.routes.row_listing import write_csv
from storage.layout import StorageLayout
from tests.apps.conftest import ROW, AppClient, NotedJobs

pytestmark = pytest.mark.anyio

ROWS = "/v1/files/file-rows"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def mixed_file(layout: StorageLayout) -> str:
    """Add a file with two good rows, a repeated one, and three faults of two kinds."""
    rows: list[Any] = [ROW, {**ROW, "prompt": "Why?"}, ROW, {"prompt": "No answer"}, 5]
    text = "".join(f"{json.dumps(row)}\n" for row in rows) + "{broken\n"
    FileStore(layout).add("file-rows", text.encode(), "rows.jsonl")
    return "file-rows"


async def test_rows_are_paged_and_searched(client: AppClient, file_id: str) -> None:
    first = (await client.get(f"{ROWS}/rows", params={"limit": 3})).json()
    assert [row["number"] for row in first["data"]] == [1, 2, 3]
    assert first["has_more"]
    assert first["last_id"] == first["next_after"]
    params = {"limit": 3, "after": first["next_after"]}
    second = (await client.get(f"{ROWS}/rows", params=params)).json()
    assert [row["number"] for row in second["data"]] == [4]
    assert not second["has_more"]
    found = (await client.get(f"{ROWS}/rows", params={"search": "nowhere"})).json()
    assert (found["data"], found["last_id"], found["has_more"]) == ([], None, False)


@pytest.mark.parametrize(
    ("path", "params", "named"),
    [
        ("rows", {"limit": 0}, "limit"),
        ("rows", {"limit": 101}, "limit"),
        ("rows", {"after": "../x"}, "after"),
        ("rows", {"search": "x" * 201}, "search"),
        ("rows", {"max_characters": 10**6}, "max_characters"),
        ("statistics", {"training": "[]"}, "training"),
        ("statistics", {"training": '{"max_length": 0}'}, "max_length"),
        ("statistics", {"training": '{"train_file": "/etc/passwd"}'}, "training"),
        ("statistics", {"model": "gone"}, "model"),
        ("faults", {"format": "xml"}, "format"),
        ("faults", {"format": "csv", "after": "1"}, "after"),
        ("duplicates", {"after": "77"}, "after"),
    ],
)
async def test_invalid_parameter_is_named(
    client: AppClient, file_id: str, path: str, params: dict[str, Any], named: str
) -> None:
    answer = await client.get(f"{ROWS}/{path}", params=params)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == named, answer.text


async def test_statistics_count_tokens_faults_and_equal_rows(
    client: AppClient, mixed_file: str
) -> None:
    found = (await client.get(f"{ROWS}/statistics", params={"model": "tiny"})).json()
    assert found["status"] == "completed"
    counts = [found[name] for name in ("num_rows", "num_faulty_rows", "num_duplicate_rows")]
    assert counts == [6, 3, 1]
    assert (found["format"], found["task"], found["unit"]) == (
        "prompt_completion",
        "causal_lm",
        "line",
    )
    lengths = found["lengths"]
    assert lengths["num_samples"] == 3
    assert sum(lengths["counts"]) + lengths["num_longer"] == 3
    assert lengths["min"] <= lengths["median"] <= lengths["max"]


async def test_lengths_equal_those_of_the_preview(client: AppClient, file_id: str) -> None:
    whole = (await client.get(f"{ROWS}/statistics")).json()["lengths"]
    shorter = whole["max"] - 1
    params = {"model": "tiny", "training": json.dumps({"max_length": shorter})}
    preview = (await client.get(f"{ROWS}/preview", params=params)).json()
    found = (await client.get(f"{ROWS}/statistics", params=params)).json()
    assert found["lengths"]["max"] == whole["max"]
    assert found["max_length"] == preview["max_length"] == shorter
    assert found["lengths"]["num_over_limit"] == preview["num_truncated_rows"]
    full = (await client.get(f"{ROWS}/preview")).json()
    assert whole["mean"] * whole["num_samples"] == full["num_tokens"]


async def test_faults_and_duplicates_are_listed_and_downloaded(
    client: AppClient, mixed_file: str
) -> None:
    page = (await client.get(f"{ROWS}/faults", params={"limit": 2})).json()
    assert [(one["number"], one["line"]) for one in page["data"]] == [(4, 4), (5, 5)]
    assert page["has_more"]
    params = {"limit": 2, "after": page["last_id"]}
    (last,) = (await client.get(f"{ROWS}/faults", params=params)).json()["data"]
    assert last["number"] == 6
    assert "not JSON" in last["reason"]
    (twin,) = (await client.get(f"{ROWS}/duplicates")).json()["data"]
    assert (twin["number"], twin["first_number"], twin["reason"]) == (3, 1, "equal to row 1")
    assert json.loads(twin["content"]) == ROW

    answer = await client.get(f"{ROWS}/faults", params={"format": "csv"})
    assert answer.headers["content-disposition"] == 'attachment; filename="file-rows-faults.csv"'
    table = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [row["line"] for row in table] == ["4", "5", "6"]
    assert json.loads(table[0]["content"]) == {"prompt": "No answer"}
    answer = await client.get(f"{ROWS}/duplicates", params={"format": "jsonl"})
    (row,) = map(json.loads, answer.text.splitlines())
    assert row["reason"] == "equal to row 1"


def test_table_of_faults_has_no_formulas() -> None:
    found = {"number": 2, "line": -3, "reason": "@SUM(A1) is unknown", "content": "=1+1"}
    table = io.StringIO(write_csv([found]).decode(), newline="")
    (line,) = csv.DictReader(table)
    assert list(line.values()) == ["2", "-3", "'@SUM(A1) is unknown", "'=1+1"]


async def test_rows_of_unknown_columns_have_statistics_once_they_are_mapped(
    client: AppClient, layout: StorageLayout
) -> None:
    FileStore(layout).add("file-rows", b"question,reply\nWhy?,Because.\n", "rows.csv")
    refused = await client.get(f"{ROWS}/statistics")
    assert refused.status_code == 400
    assert "question" in refused.json()["error"]["message"]
    mapped = json.dumps({"columns": {"prompt": "question", "completion": "reply"}})
    found = (await client.get(f"{ROWS}/statistics", params={"training": mapped})).json()
    assert (found["num_rows"], found["num_faulty_rows"]) == (1, 0)
    (row,) = (await client.get(f"{ROWS}/preview", params={"training": mapped})).json()["rows"]
    assert (row["number"], row["line"]) == (1, 2)


async def test_statistics_are_computed_once(
    client: AppClient, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (await client.get(f"{ROWS}/statistics")).json()

    def refuse(_: object) -> bool:
        raise AssertionError("the rows are read again")

    monkeypatch.setattr(file_rows, "are_quick", refuse)
    assert (await client.get(f"{ROWS}/statistics")).json() == first


async def test_large_file_is_surveyed_by_a_task(
    client: AppClient,
    layout: StorageLayout,
    jobs: NotedJobs,
    file_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_rows, "are_quick", lambda _: False)
    for _ in range(2):  # it is started once
        answer = (await client.get(f"{ROWS}/statistics")).json()
        assert answer == {"object": "file.statistics", "status": "running", "model": "tiny"}
    (task,) = jobs.tasks
    refused = await client.get(f"{ROWS}/faults")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "survey_running")

    survey_file(layout, task.subject, *map(str, task.arguments))
    jobs.running.clear()
    assert (await client.get(f"{ROWS}/statistics")).json()["num_rows"] == 4
    assert (await client.get(f"{ROWS}/faults")).json()["data"] == []
    assert len(jobs.tasks) == 1


async def test_failed_task_is_reported_and_started_again(
    client: AppClient, jobs: NotedJobs, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rows, "are_quick", lambda _: False)
    await client.get(f"{ROWS}/statistics")
    jobs.running.clear()
    jobs.task_failures["survey_file", file_id] = "its process was killed"
    failed = await client.get(f"{ROWS}/statistics")
    assert failed.status_code == 500
    assert "its process was killed" in failed.json()["error"]["message"]
    assert (await client.get(f"{ROWS}/statistics")).json()["status"] == "running"
    assert len(jobs.tasks) == 2


async def test_content_of_rows_needs_files_read(services: Services, file_id: str) -> None:
    key = KeyStore(services.layout).create("viewer", Role.READ).text
    client = AppClient(
        build_http(services, None),
        "http://127.0.0.1:8000",
        headers={"authorization": f"Bearer {key}"},
    )
    for path in ("rows", "statistics", "faults", "duplicates"):
        assert (await client.get(f"{ROWS}/{path}")).status_code == 403
