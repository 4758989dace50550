"""The file and name with which row faults are reported, and the number of reads of a file."""

import errno
import json
from typing import Any

import pytest

from apps.errors import ApiError
from apps.file_store import FileStore
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.validation.row_validation import check_file, check_job, read_refusal
from storage import durable
from storage.layout import StorageLayout
from tests.apps.conftest import ROW, create_run
from training.data.text.encoding import RowEncoder

pytestmark = pytest.mark.anyio

GOOD = f"{json.dumps(ROW)}\n".encode() * 4
BAD = GOOD + b'{"prompt": "x", "completion": 3}\n'


def add_files(layout: StorageLayout, train: bytes, validation: bytes) -> dict[str, str]:
    """Add two uploads with the same file name."""
    store = FileStore(layout)
    for file_id, content in (("file-train", train), ("file-validation", validation)):
        store.add(file_id, content, "bad.jsonl")
    return {"file_id": "file-train", "validation_file": "file-validation"}


@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.parametrize("param", ["training_file", "validation_file"])
async def test_invalid_rows_report_parameter_for_files_with_same_name(
    queue: RunQueue,
    layout: StorageLayout,
    monkeypatch: pytest.MonkeyPatch,
    param: str,
    is_quick: bool,
) -> None:
    files = add_files(layout, *((BAD, GOOD) if param == "training_file" else (GOOD, BAD)))
    if is_quick:
        with pytest.raises(ApiError) as refused:
            await create_run(queue, **files)
        found: dict[str, Any] = {
            "message": str(refused.value),
            "param": refused.value.param,
            "code": refused.value.code,
        }
    else:
        monkeypatch.setattr("apps.fine_tuning.validation.row_validation.MAX_QUICK_BYTES", 0)
        run = await create_run(queue, **files)
        check_job(layout, run.path.name)
        refusal = read_refusal(run)
        assert refusal is not None
        found = dict(refusal)
    assert (found["param"], found["code"]) == (param, f"invalid_{param}")
    assert found["message"].startswith("bad.jsonl: 1 of 5 rows cannot be used")


async def test_upload_is_hashed_and_tokenized_once_per_model(
    queue: RunQueue, layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = add_files(layout, GOOD, GOOD.replace(b"Twelve", b"Eleven"))
    encoded: list[int] = []

    encode = RowEncoder.encode

    def count_rows(encoder: RowEncoder, batches: Any) -> Any:
        made = list(encode(encoder, batches))
        encoded.append(len(made))
        return iter(made)

    monkeypatch.setattr(RowEncoder, "encode", count_rows)
    hashed: list[str] = []
    hash_file = durable.hash_file

    def count_hash(path: Any) -> str:
        hashed.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(durable, "hash_file", count_hash)
    for file_id in ("file-train", "file-validation"):
        check_file(layout, file_id)
        assert FileStore(layout).get(file_id)["status"] == "processed"
    assert encoded == [4, 4]
    runs = [
        await create_run(queue, "file-train"),
        await create_run(queue, **files),
        await create_run(queue, "file-train", training={"validation_fraction": 0.25}),
    ]
    assert encoded == [4, 4], "jobs do not use the tokens of the validation"
    assert "data_bad.jsonl" not in hashed
    names = [run.read_data_summary()["name"] for run in runs]
    assert names == ["bad.jsonl"] * 3
    hashes = {run.read_data_summary()["sha256"] for run in runs}
    assert hashes == {FileStore(layout).get("file-train")["sha256"]}
    sizes = [
        (summary["num_rows"], (summary["validation"] or {}).get("num_rows"))
        for summary in (run.read_data_summary() for run in runs)
    ]
    assert sizes == [(4, None), (4, 4), (3, 1)]


async def test_preview_error_has_uploaded_filename(queue: RunQueue, layout: StorageLayout) -> None:
    FileStore(layout).add("file-train", GOOD, "rows.jsonl")
    with pytest.raises(ApiError) as refused:
        await queue.preview("file-train", "latest", 1, {"columns": {"prompt": "nope"}})
    assert str(refused.value).startswith("rows.jsonl: ")


async def test_ignored_keys_are_reported_by_validation_preview_and_events(
    queue: RunQueue, layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**ROW, "id": place, **({"note": "x"} if place == 3 else {})} for place in range(4)]
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    FileStore(layout).add("file-train", content, "rows.jsonl")
    counted = {"id": 4, "note": 1}
    assert (await queue.preview("file-train", "latest", 1, {}))["ignored_keys"] == counted
    run = await create_run(queue, "file-train")
    (warning,) = [event for event in run.events.read() if event["level"] == "warn"]
    assert (
        "Keys of rows that are not used, with how many rows have them: 'id' (4), 'note' (1)"
        in (warning["message"])
    )
    assert warning["data"] == {"ignored_keys": counted}
    monkeypatch.setattr("apps.fine_tuning.submission.are_quick", lambda _: False)
    shown = await queue.preview("file-train", "latest", 1, {})
    assert (shown["num_rows"], shown["ignored_keys"]) == (None, {"id": 1})  # only of the read row
    check_file(layout, "file-train")
    check = FileStore(layout).get("file-train")["check"]
    assert check is not None
    assert check["ignored_keys"] == counted
    shown = await queue.preview("file-train", "latest", 1, {})
    assert (shown["num_rows"], shown["ignored_keys"]) == (4, counted)


@pytest.mark.parametrize("fault", [ValueError("of our own"), OSError(errno.EROFS, "read-only")])
async def test_internal_error_is_not_reported_as_invalid_rows(
    queue: RunQueue, layout: StorageLayout, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr("apps.fine_tuning.validation.row_validation.MAX_QUICK_BYTES", 0)
    run = await create_run(queue, **add_files(layout, GOOD, GOOD))

    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr("training.data.prepare.prepare_data", fail)
    with pytest.raises(type(fault)):
        check_job(layout, run.path.name)
    assert read_refusal(run) is None
    with pytest.raises(type(fault)):
        check_file(layout, "file-train")
    assert FileStore(layout).get("file-train")["status"] == "uploaded"


@pytest.mark.parametrize("damage", [GOOD.replace(b"{", b"}"), GOOD[:-9], None])
async def test_damaged_stored_file_gets_500(
    queue: RunQueue, layout: StorageLayout, damage: bytes | None
) -> None:
    files = FileStore(layout)
    files.add("file-train", GOOD, "rows.jsonl")
    path = files.find_content("file-train")
    path.unlink() if damage is None else path.write_bytes(damage)
    for ask in (
        lambda: queue.preview("file-train", "latest", 1, {}),
        lambda: create_run(queue, "file-train"),
    ):
        with pytest.raises(
            ApiError, match="^the server's copy of file 'rows.jsonl' is damaged: "
        ) as refused:
            await ask()
        assert (refused.value.status, refused.value.code) == (500, "file_unreadable")
