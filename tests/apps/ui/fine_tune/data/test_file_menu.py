"""The menu of files: which are offered, how they are distinguished, and their deletion."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from apps.client.client import ApiClient
from apps.client.resources import File, FileCheck
from apps.ui.fine_tune.data.file_menu import (
    HANDBOOK_FILE_ID,
    FileMenu,
    choose_file,
    list_file_choices,
)
from apps.ui.protection.uploads import UploadFolder
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


@pytest.fixture
def call(api: StubApi, tmp_path: Path) -> Callable[[Callable[[FileMenu], Awaitable[Any]]], Any]:
    """Call an event handler of a new menu."""

    def call_handler(use: Callable[[FileMenu], Awaitable[Any]]) -> Any:
        async def run(client: ApiClient) -> Any:
            with gr.Blocks(analytics_enabled=False):
                menu = FileMenu(client, UploadFolder(tmp_path))
            return await use(menu)

        return ask(api, run)

    return call_handler


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
    assert "choose its columns" in labels["file-c"]
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


def test_outputs_of_jobs_are_not_listed(call: Any, api: StubApi) -> None:
    api.files.append({**api.files[0], "id": "file-m", "purpose": "fine-tune-results"})
    assert [file.id for file in call(lambda menu: menu.list_files())] == ["file-handbook"]


def test_deleted_file_is_gone_and_another_one_is_chosen(call: Any, api: StubApi) -> None:
    api.files.append({**api.files[0], "id": "file-b", "filename": "b.csv"})
    question, text = call(lambda menu: menu.ask_to_delete("file-b"))
    assert question.visible
    assert "Delete b.csv (10 bytes)?" in text
    question, menu, _, changed = call(lambda menu: menu.delete_file("file-b", False))
    assert (question.visible, menu.value) == (False, "file-handbook")
    assert changed == "after file-b"
    assert [file["id"] for file in api.files] == ["file-handbook"]


def test_file_in_use_stays(call: Any, api: StubApi, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(gr, "Warning", shown.append)
    api.rows.in_use.add("file-handbook")
    question, *kept = call(lambda menu: menu.delete_file("file-handbook", False))
    assert not question.visible
    assert [type(one) for one in kept] == [type(gr.skip())] * 3
    assert "still needs file" in shown[0]
    assert len(api.files) == 1
