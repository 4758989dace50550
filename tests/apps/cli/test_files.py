import json
from pathlib import Path

import pytest

from apps.http_api.dependencies import Services
from tests.apps.cli.conftest import Call

ROWS = '{"prompt": "How many loaves?", "completion": "Twelve."}\n' * 3


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    return tmp_path / "rows.jsonl"


def test_file_is_uploaded_downloaded_and_deleted(
    call: Call, services: Services, rows: Path, tmp_path: Path
) -> None:
    status, file_id = call("files", "upload", str(rows))
    assert (status, services.files.get(file_id)["filename"]) == (0, "rows.jsonl")
    status, shown = call("files", "list")
    assert (status, file_id in shown, "uploaded" in shown) == (0, True, True)
    assert json.loads(call("files", "show", file_id, "--json")[1])["id"] == file_id
    back = tmp_path / "back.jsonl"
    assert call("files", "download", file_id, str(back)) == (0, "")
    assert back.read_text() == ROWS
    assert call("files", "download", file_id)[1] == " ".join(ROWS.split())
    status, output = call("files", "download", file_id, str(back))
    assert (status, "already exists" in output) == (1, True)
    assert call("files", "delete", file_id) == (0, f"deleted {file_id}")
    status, output = call("files", "download", file_id, str(tmp_path / "new"))
    assert (status, "there is no file" in output) == (1, True)
    assert not [path for path in tmp_path.iterdir() if "new" in path.name]


def test_file_show_prints_validation_error(call: Call, services: Services) -> None:
    services.files.add("file-bad", b'{"text": 3}\n', "bad.jsonl")
    services.files.record_check("file-bad", "error", "'text' is 3, expected text (line 1)", None)
    status, shown = call("files", "show", "file-bad")
    assert (status, "error" in shown, "(line 1)" in shown) == (0, True, True)


def test_file_show_prints_ignored_keys(call: Call, services: Services) -> None:
    services.files.add("file-keys", ROWS.encode(), "rows.jsonl")
    found = {"num_rows": 3, "format": "chat", "num_tokens": 9, "model": "m", "learned_share": 0.5}
    note = services.files.record_check
    note("file-keys", "processed", None, {**found, "ignored_keys": {"id": 3, "note": 1}})
    assert "id (3 rows), note (1 rows)" in call("files", "show", "file-keys")[1]
    note("file-keys", "processed", None, found)  # the record of an earlier release
    assert "not used" not in call("files", "show", "file-keys")[1]


def test_upload_of_missing_file_prints_error(call: Call) -> None:
    assert call("files", "upload", "nowhere.jsonl") == (
        1,
        "error: there is no file 'nowhere.jsonl'",
    )
