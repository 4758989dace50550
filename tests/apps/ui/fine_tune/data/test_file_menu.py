"""The menu of files: which are offered, how they are distinguished, and uploads."""

from pathlib import Path
from typing import Any

import pytest

from apps.client.resources import File, FileCheck
from apps.ui.fine_tune.data import file_menu
from apps.ui.fine_tune.data.file_menu import (
    HANDBOOK_FILE_ID,
    add_file,
    choose_file,
    count_unusable,
    list_file_choices,
    list_files,
    wait_for_check,
)
from apps.ui.protection.uploads import ForeignFileError, UploadFolder
from tests.apps.stub_api import StubApi, ask

NOW = 1_700_000_600.0


def make_file(file_id: str, **changes: Any) -> File:
    values: dict[str, Any] = {
        "id": file_id,
        "filename": "rows.csv",
        "bytes": 12_600,
        "created_at": 1_700_000_300,
        "status": "processed",
        "check": FileCheck(num_rows=1200),
    }
    return File(**{**values, **changes})


def test_entry_has_name_size_rows_and_age() -> None:
    assert list_file_choices([make_file("file-a")], NOW) == [
        ("rows.csv · 12.6 kB · 1,200 rows · 5 min ago", "file-a")
    ]


def test_files_that_cannot_be_used_are_offered_only_on_request() -> None:
    broken = make_file("file-b", status="error", error_code="invalid_rows", check=None)
    other = make_file("file-c", status="error", error_code="unknown_columns", check=None)
    new = make_file("file-d", status="uploaded", check=None)
    files = [make_file("file-a"), broken, other, new]
    assert [one for _, one in list_file_choices(files, NOW)] == ["file-a", "file-c", "file-d"]
    assert len(list_file_choices(files, NOW, "file-b")) == 4, "the chosen one stays"
    labels = {one: label for label, one in list_file_choices(files, NOW, shows_all=True)}
    assert "cannot be used" in labels["file-b"]
    assert "custom column names" in labels["file-c"]
    assert "being checked" in labels["file-d"]


def test_equal_entries_are_told_apart() -> None:
    files = [make_file(f"file-{number}00000{number}") for number in range(5)]
    labels = [label for label, _ in list_file_choices(files, NOW)]
    assert len(set(labels)) == 5
    older = make_file("file-x", created_at=1_699_990_000)
    assert list_file_choices([*files[:1], older], NOW)[0][0].endswith("5 min ago")


def test_handbook_is_first_and_chosen_by_default() -> None:
    files = [make_file("file-a"), make_file(HANDBOOK_FILE_ID)]
    assert list_file_choices(files, NOW)[0] == (
        "The bundled handbook · 12.6 kB · 1,200 rows",
        HANDBOOK_FILE_ID,
    )
    assert choose_file(files, None) == HANDBOOK_FILE_ID
    assert choose_file(files, "file-a") == "file-a"
    assert choose_file(files, "file-gone") == HANDBOOK_FILE_ID
    assert choose_file([], "file-gone") is None


def test_unusable_files_are_counted() -> None:
    broken = make_file("file-b", status="error", error_code="invalid_rows", check=None)
    other = make_file("file-c", status="error", error_code="unknown_columns", check=None)
    assert count_unusable([make_file("file-a"), broken, other]) == 1


def test_outputs_of_jobs_are_not_listed(api: StubApi) -> None:
    api.files.append({**api.files[0], "id": "file-m", "purpose": "fine-tune-results"})
    assert [file.id for file in ask(api, list_files)] == ["file-handbook"]


def test_upload_becomes_a_file_and_is_removed(api: StubApi, tmp_path: Path) -> None:
    uploads = UploadFolder(tmp_path)
    path = uploads.path / "rows.jsonl"
    path.write_text('{"text": "a"}')
    added = ask(api, lambda client: add_file(client, uploads, str(path)))
    assert api.files[0]["id"] == added or api.files[-1]["id"] == added
    assert not path.exists()


def test_path_that_is_no_upload_is_refused(api: StubApi, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    uploads = UploadFolder(tmp_path)
    with pytest.raises(ForeignFileError):
        ask(api, lambda client: add_file(client, uploads, str(secret)))
    assert secret.exists()
    assert len(api.files) == 1


def test_check_of_a_large_file_is_not_waited_for(
    api: StubApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_menu, "CHECK_PATIENCE_S", 0.0)
    api.files[0]["status"] = "uploaded"
    ask(api, lambda client: wait_for_check(client, "file-handbook"))
    ask(api, lambda client: wait_for_check(client, "file-gone"))
    assert api.files[0]["status"] == "uploaded"
