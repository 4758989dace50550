"""Evaluations over HTTP: pages, rows with filters, CSV, what is in use, and roles."""

import asyncio
import csv
import io
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.evaluations import evaluation_store
from apps.evaluations.evaluation_record import (
    EvaluationRecord,
    StoredAnswer,
    StoredRow,
    read_evaluation_record,
)
from apps.evaluations.evaluation_store import EvaluationStore
from apps.fine_tuning.queue import RunQueue
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from storage.layout import StorageLayout
from tests.apps.conftest import AppClient, NotedJobs, build_services
from tests.apps.evaluations.conftest import ScriptedSource, add_file, add_stored, make_rows, source

__all__ = ["source"]
pytestmark = pytest.mark.anyio

PATH = "/v1/evaluations"
EXACT, WRONG = {"exact_match": True, "text": "b"}, {"exact_match": False, "text": "c"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def stored(layout: StorageLayout) -> str:
    """An evaluation of two models with four rows: both right, one right, both wrong, failed."""
    models = [{"model": name, "requested": name} for name in ("tiny", "other")]
    add_stored(layout, "eval-1", models=models)
    store = EvaluationStore(layout)
    (layout.evaluations.find("eval-1") / "rows.jsonl").unlink()
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (EXACT, EXACT),
        (EXACT, {**WRONG, "text": "=cmd()"}),
        (WRONG, WRONG),
        (WRONG, {"error": "too long"}),
    ]
    for number, pair in enumerate(pairs, 1):
        names = ("tiny", "other")
        answers = tuple(
            StoredAnswer(model=name, loss_sum=1.0, num_tokens=2, **one)
            for name, one in zip(names, pair, strict=True)
        )
        store.add_row(
            "eval-1",
            StoredRow(
                id=f"row-{number}",
                file="file-rows",
                number=number,
                prompt="-1+1",
                expected="b\nc",
                answers=answers,
            ),
        )
    return f"{PATH}/eval-1"


async def test_rows_are_paged_and_filtered(client: AppClient, stored: str) -> None:
    async def list_numbers(**params: str) -> tuple[list[int], bool]:
        answer = await client.get(f"{stored}/rows", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        return [row["number"] for row in page["data"]], page["has_more"]

    assert await list_numbers() == ([1, 2, 3, 4], False)
    assert await list_numbers(limit="2") == ([1, 2], True)
    assert await list_numbers(limit="2", after="row-2") == ([3, 4], False)
    assert await list_numbers(filter="wrong") == ([2, 3, 4], False)
    assert await list_numbers(filter="different") == ([2, 4], False)
    assert await list_numbers(filter="wrong", after="row-1", limit="1") == ([2], True)


@pytest.mark.parametrize("chosen", ["all", "different", "wrong"])
async def test_later_page_is_read_without_the_rows_before(
    client: AppClient, layout: StorageLayout, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    add_stored(layout, "eval-1")
    for number in range(2, 301):
        answer = StoredAnswer(model="tiny", text="c")
        row = {"id": f"row-{number}", "number": number, "prompt": "a", "expected": "b"}
        EvaluationStore(layout).add_row("eval-1", StoredRow(file="f", answers=(answer,), **row))
    params = {"filter": chosen, "limit": "10", "after": "row-280"}
    first = (await client.get(f"{PATH}/eval-1/rows", params=params)).json()
    num_parsed = 0
    parse = StoredRow.model_validate_json

    def count(line: bytes) -> StoredRow:
        nonlocal num_parsed
        num_parsed += 1
        return parse(line)

    monkeypatch.setattr(StoredRow, "model_validate_json", count)
    assert (await client.get(f"{PATH}/eval-1/rows", params=params)).json() == first
    assert [row["number"] for row in first["data"]] == list(range(281, 291))
    assert num_parsed == 10
    later = (await client.get(f"{PATH}/eval-1/rows", params={**params, "after": "row-290"})).json()
    assert [row["number"] for row in later["data"]] == list(range(291, 301))
    assert num_parsed <= 30


async def test_rows_match_their_description(client: AppClient, stored: str) -> None:
    description = (await client.get("/openapi.json")).json()
    for path, name in ((stored, "Evaluation"), (f"{stored}/rows", "EvaluationRowPage")):
        schema = {"$ref": f"#/components/schemas/{name}", "components": description["components"]}
        found = (await client.get(path)).json()
        jsonschema.validate(found, schema)
        shown = found["data"][0] if "data" in found else found
        properties = description["components"]["schemas"][name.removesuffix("Page")]["properties"]
        assert shown.keys() == properties.keys()
    answer = (await client.get(f"{stored}/rows")).json()["data"][0]["answers"][0]
    assert "loss_sum" not in answer


async def test_csv_has_all_rows_and_no_formulas(client: AppClient, stored: str) -> None:
    answer = await client.get(f"{stored}/rows", params={"format": "csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="eval-1.csv"'
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert [line["number"] for line in lines] == ["1", "2", "3", "4"]
    assert (lines[1]["prompt"], lines[1]["text_2"]) == ("'-1+1", "'=cmd()")
    assert (lines[0]["expected"], lines[0]["exact_match"]) == ("b\nc", "true")
    assert lines[3]["error_2"] == "too long"
    some = await client.get(f"{stored}/rows", params={"format": "csv", "filter": "different"})
    assert len(list(csv.reader(io.StringIO(some.text)))) == 3


@pytest.mark.parametrize(
    ("path", "params", "status", "named"),
    [
        ("eval-1/rows", {"filter": "some"}, 400, "filter"),
        ("eval-1/rows", {"limit": "0"}, 400, "limit"),
        ("eval-1/rows", {"after": "row-77"}, 404, "after"),
        ("eval-1/rows", {"format": "csv", "after": "row-1"}, 400, "after"),
        ("eval-2/rows", {}, 404, "id"),
        ("eval-2", {}, 404, "id"),
        ("..%2Fruns", {}, 404, None),
        ("", {"after": "eval-2"}, 404, "after"),
    ],
)
async def test_invalid_parameter_is_named(
    client: AppClient,
    stored: str,
    path: str,
    params: dict[str, str],
    status: int,
    named: str | None,
) -> None:
    answer = await client.get(f"{PATH}/{path}".rstrip("/"), params=params)
    assert answer.status_code == status, answer.text
    if named is not None:
        assert answer.json()["error"]["param"] == named


async def test_evaluations_are_listed_newest_first_and_by_model(
    client: AppClient, layout: StorageLayout
) -> None:
    add_stored(layout, "eval-1")
    for number in (2, 3):
        models = [{"model": "other", "requested": "best"}]
        add_stored(layout, f"eval-{number}", created_at=number, models=models)

    async def list_ids(**params: str) -> list[str]:
        page = (await client.get(PATH, params=params)).json()
        return [one["id"] for one in page["data"]]

    assert await list_ids() == ["eval-3", "eval-2", "eval-1"]
    assert await list_ids(model="best", limit="1") == ["eval-3"]
    assert await list_ids(model="other", after="eval-3") == ["eval-2"]
    assert await list_ids(model="tiny") == await list_ids(model="latest") == ["eval-1"]
    assert await list_ids(model="gone") == []


async def test_evaluation_is_created_computed_and_deleted(
    layout: StorageLayout, jobs: NotedJobs, source: ScriptedSource
) -> None:
    queue = RunQueue(layout, jobs, answers=source)
    client = AppClient(
        build_http(build_services(layout, queue), None), base_url="http://127.0.0.1:8000"
    )
    body = {"models": ["tiny", "other"], "file": add_file(layout, make_rows(3))}
    source.gate.clear()
    created = (await client.post(PATH, json=body)).json()
    one = f"{PATH}/{created['id']}"
    assert (created["object"], created["status"]) == ("evaluation", "queued")
    for used in ("/v1/files/file-rows", "/v1/models/other"):
        refused = await client.delete(used)
        assert refused.status_code == 409, refused.text
        assert created["id"] in refused.json()["error"]["message"]
    assert (await client.delete(one)).status_code == 409
    source.gate.set()
    async with asyncio.timeout(30):
        while (await client.get(one)).json()["status"] != "succeeded":
            await queue.reconcile()
            await asyncio.sleep(0.01)
    assert (await client.post(f"{one}/cancel")).status_code == 409
    for used in ("/v1/files/file-rows", "/v1/models/other"):
        assert (await client.delete(used)).status_code == 200
    kept = (await client.get(PATH, params={"model": "other"})).json()["data"]
    assert [found["num_done"] for found in kept] == [3]
    assert (await client.delete(one)).json() == {
        "id": created["id"],
        "object": "evaluation",
        "deleted": True,
    }
    assert (await client.get(one)).status_code == 404
    queue.close()


async def test_deletion_of_files_does_not_read_all_evaluations_again(
    client: AppClient, layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_read = 0

    def count(path: Path) -> EvaluationRecord:
        nonlocal num_read
        num_read += 1
        return read_evaluation_record(path)

    monkeypatch.setattr(evaluation_store, "read_evaluation_record", count)
    add_stored(layout, "eval-1")
    record = layout.evaluations.find("eval-1") / evaluation_store.RECORD_NAME
    os.utime(record, (1, 1))  # one that changed just now is read again
    for name in ("file-1", "file-2", "file-3"):
        add_file(layout, make_rows(1), name)
        assert (await client.delete(f"/v1/files/{name}")).status_code == 200
    assert num_read == 1


async def test_answers_to_rows_need_the_permission_to_read_files(
    services: Services, layout: StorageLayout, stored: str
) -> None:
    keys = KeyStore(layout)
    reader = keys.create("reader", Role.READ).text
    headers = {"authorization": f"Bearer {reader}"}
    client = AppClient(
        build_http(services, None), base_url="http://127.0.0.1:8000", headers=headers
    )
    assert (await client.get(stored)).status_code == 200
    assert (await client.get(f"{stored}/rows")).status_code == 403
    assert (await client.delete(stored)).status_code == 403


async def test_application_without_generator_refuses(client: AppClient, file_id: str) -> None:
    answer = await client.post(PATH, json={"models": ["tiny"], "file": file_id})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_generator")
