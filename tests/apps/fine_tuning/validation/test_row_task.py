"""The check of uploads with labelled rows."""

import io
import json
import zipfile
from typing import Any

import pytest

from apps.errors import InvalidInputError
from apps.file_store import FileStore
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.validation.row_validation import check_file
from storage.layout import StorageLayout
from tests.tiny_vision import draw_shape

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


PAIR = {"prompt": "one", "chosen": "two", "rejected": "three"}
VERDICT = {"prompt": "one", "completion": "two", "label": True}


@pytest.mark.parametrize("rows", [(PAIR,), (VERDICT, {**VERDICT, "prompt": "four"})])
def test_rows_with_preferences_are_for_preference_tuning(layout: StorageLayout, rows: Any) -> None:
    file = check(layout, *rows)
    assert (file["status"], file["status_details"]) == ("processed", None)
    assert (file["check"]["task"], file["check"]["num_rows"]) == ("preference", len(rows))
    assert 0 < file["check"]["learned_share"] < 1


@pytest.mark.parametrize(
    ("row", "task"),
    [
        ({"prompt": "one", "completion": "two", "chosen": None, "rejected": None}, None),
        ({"text": "loan", "label": "yes", "rejected": False}, "sequence_classification"),
    ],
)
def test_columns_named_as_answers_do_not_make_preferences(
    layout: StorageLayout, row: Any, task: str | None
) -> None:
    file = check(layout, row, {**row, "label": "no"} if task else row)
    assert (file["status"], file["status_details"]) == ("processed", None)
    assert file["check"].get("task") == task


def test_fault_of_a_preference_is_reported(layout: StorageLayout) -> None:
    file = check(layout, PAIR, {**PAIR, "rejected": "two"})
    assert file["status"] == "error"
    assert "equal, expected two different answers (line 2)" in file["status_details"]


def test_faults_of_chats_are_not_hidden_by_a_label(layout: StorageLayout) -> None:
    file = check(layout, {"prompt": "one", "completion": 3, "text": "a", "label": "b"})
    assert file["status"] == "error"
    assert "completion" in file["status_details"]


def test_faults_of_labelled_rows_are_reported(layout: StorageLayout) -> None:
    file = check(layout, LABELLED, {**LABELLED, "label": None})
    assert file["status"] == "error"
    assert "label" in file["status_details"]


def pack_images(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def encode(colour: str) -> bytes:
    buffer = io.BytesIO()
    draw_shape(colour, 1).save(buffer, "PNG")
    return buffer.getvalue()


IMAGES = {"red/1.png": encode("red"), "red/2.png": encode("red"), "blue/1.png": encode("blue")}


def test_archive_of_images_is_checked_without_an_image_model(layout: StorageLayout) -> None:
    store = FileStore(layout)
    store.add("file-images", pack_images(IMAGES), "shapes.zip")
    check_file(layout, "file-images")
    file: Any = store.get("file-images")
    assert (file["status"], file["status_details"]) == ("processed", None)
    assert file["check"]["task"] == "image_classification"
    assert file["check"]["label_counts"] == {"blue": 1, "red": 2}
    store.add("file-images", pack_images({**IMAGES, "red/3.png": b"x"}), "shapes.zip")
    check_file(layout, "file-images")
    file = store.get("file-images")
    assert file["status"] == "error"
    assert '"red/3.png" is not an image' in file["status_details"]


@pytest.mark.anyio
async def test_preview_shows_labelled_rows(queue: RunQueue, layout: StorageLayout) -> None:
    check(layout, {**LABELLED, "id": 1}, {**LABELLED, "label": "negative"})
    shown = await queue.preview("file-labelled", "latest", 1, {})
    (row,) = shown["rows"]
    texts = ["the film was good", "really"]
    assert row == {
        "number": 1,
        "line": 1,
        "is_part": False,
        "tokens": [],
        "texts": texts,
        "labels": ["positive"],
    }
    assert shown["task"] == "sequence_classification"
    assert shown["format"] == "sentence1 and sentence2 with label"
    assert (shown["num_rows"], shown["ignored_keys"]) == (2, {"id": 1})
    assert shown["label_counts"] == {"negative": 1, "positive": 1}
    training = {"task": "sequence_classification", "columns": {"text": "sentence2", "label": "id"}}
    (row,) = (await queue.preview("file-labelled", "latest", 1, training))["rows"]
    assert (row["texts"], row["labels"]) == (["really"], ["1"])
    bad = {**training, "columns": {"label": "gone"}}
    with pytest.raises(InvalidInputError, match="rows.jsonl: line 1: columns names"):
        await queue.preview("file-labelled", "latest", 1, bad)
    FileStore(layout).add("file-images", pack_images(IMAGES), "shapes.zip")
    shown = await queue.preview("file-images", "latest", 2, {})
    assert [(row["texts"], row["labels"]) for row in shown["rows"]] == [
        (["blue/1.png"], ["blue"]),
        (["red/1.png"], ["red"]),
    ]
    assert (shown["task"], shown["num_rows"]) == ("image_classification", None)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([{"question": "one", "reply": "two"}], "unknown_columns"),
        ([{"prompt": "one", "completion": 3}], "invalid_rows"),
        ([{"text": "one"}, {"text": 5}], "invalid_rows"),
        ([5], "invalid_rows"),
        ([{"prompt": "one", "chosen": "two"}], "invalid_rows"),
        ([], "invalid_rows"),
    ],
)
def test_failed_check_says_whether_columns_are_unknown(
    layout: StorageLayout, rows: list[Any], code: str
) -> None:
    file = check(layout, *rows)
    assert (file["status"], file["error_code"]) == ("error", code)


def test_passed_check_has_no_error_code(layout: StorageLayout) -> None:
    file = check(layout, {"prompt": "one", "completion": "two"})
    assert file["status"] == "processed"
    assert "error_code" not in file
