"""The check of uploads with labelled rows."""

import json
from typing import Any

import pytest

from apps.file_store import FileStore
from apps.fine_tuning.validation.row_validation import check_file
from storage.layout import StorageLayout

LABELLED = {"sentence1": "the film was good", "sentence2": "really", "label": "positive"}


def check(layout: StorageLayout, *rows: Any) -> dict[str, Any]:
    store = FileStore(layout)
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    store.add("file-labelled", content, "rows.jsonl")
    check_file(layout, "file-labelled")
    return dict(store.get("file-labelled"))


@pytest.mark.parametrize("row", [LABELLED, {"text": "good film", "label": 1}])
def test_rows_with_text_and_label_are_classification(layout: StorageLayout, row: Any) -> None:
    other = {**row, "label": "negative" if isinstance(row["label"], str) else 0}
    file = check(layout, row, other, row)
    assert (file["status"], file["status_details"]) == ("processed", None)
    assert file["check"]["task"] == "sequence_classification"
    assert file["check"]["num_rows"] == 3
    assert sorted(file["check"]["label_counts"].values()) == [1, 2]
    assert file["check"]["learned_share"] == 0


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "one", "completion": "two", "text": "three", "label": "four"},
        {
            "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            "text": "c",
            "label": "d",
        },
        {"text": "one two"},
    ],
)
def test_rows_of_chats_and_texts_stay_those_of_language_models(
    layout: StorageLayout, row: Any
) -> None:
    file = check(layout, row, row)
    assert file["status"] == "processed", file["status_details"]
    assert "task" not in file["check"]


def test_faults_of_chats_are_not_hidden_by_a_label(layout: StorageLayout) -> None:
    file = check(layout, {"prompt": "one", "completion": 3, "text": "a", "label": "b"})
    assert file["status"] == "error"
    assert "completion" in file["status_details"]


def test_faults_of_labelled_rows_are_reported(layout: StorageLayout) -> None:
    file = check(layout, LABELLED, {**LABELLED, "label": None})
    assert file["status"] == "error"
    assert "label" in file["status_details"]
