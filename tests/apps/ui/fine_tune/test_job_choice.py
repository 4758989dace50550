"""What belongs to a choice on the page "Fine-tune": model and data decide the task and settings."""

import json
import re
from typing import Any

import pytest

from apps.client.errors import ApiClientError
from apps.ui.fine_tune import job_choice
from apps.ui.fine_tune.data import file_menu
from apps.ui.fine_tune.fine_tune_request import read_choice_request
from apps.ui.fine_tune.job_choice import JobChoice, read_choice
from tests.apps.stub_api import StubApi, ask

CLASSIFICATION = "sequence_classification"
GUESS = {"prompt": "question", "completion": "reply"}


def add_file(api: StubApi, file_id: str, **changes: Any) -> None:
    api.files.append({**api.files[0], "id": file_id, **changes})


@pytest.fixture(autouse=True)
def files(api: StubApi) -> None:
    """Add a file with labels, and one whose columns have names of their own."""
    add_file(api, "file-labels", check={"task": CLASSIFICATION})
    add_file(api, "file-odd", status="error", error_code="unknown_columns")
    api.rows.rows["file-odd"] = [{"question": "Why?", "reply": "Because."}]
    api.rows.rows["file-handbook"] = [{"prompt": "Why?", "completion": "Because."}]


def choose(api: StubApi, *changes: str, **asked: Any) -> JobChoice:
    """Return what belongs to a choice; the model is "base" and the data are the handbook."""
    chosen = {"model": "base", "data": "file-handbook", "task": "causal_lm", **asked}
    entered = json.dumps(chosen.pop("entered", {}))
    request = read_choice_request({**chosen, "entered": entered, "changes": list(changes)})
    return ask(api, lambda client: read_choice(client, request))


def test_first_model_and_data_are_chosen_when_the_page_is_opened(api: StubApi) -> None:
    found = choose(api, "page", model="", data="", task="")
    message = found.to_message()
    assert (message["model"], message["data"], message["task"]) == (
        "base",
        "file-handbook",
        "causal_lm",
    )
    assert message["models"][0] == ("base (base)", "base")
    assert [name for _, name in message["files"]] == ["file-handbook", "file-labels", "file-odd"]
    assert message["tasks"] == [
        ("Generate text", "causal_lm"),
        ("Classify texts", CLASSIFICATION),
    ]
    assert "facts" in message
    assert 'id="setting-epochs"' in message["form"]
    assert "name" not in message


def test_choice_reports_whether_the_file_is_being_checked(
    api: StubApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_menu, "CHECK_PATIENCE_S", 0.0)
    api.num_unchecked_reads = 100
    api.checks["new.csv"] = {}
    add_file(api, "file-new", filename="new.csv", status="uploaded")
    assert choose(api, "data", data="file-new").to_message()["is_being_checked"]
    labels = {"status": "processed", "check": {"task": CLASSIFICATION}}
    api.files[-1].update(labels)
    found = choose(api, "check", data="file-new").to_message()
    assert (found["is_being_checked"], found["task"]) == (False, CLASSIFICATION)
    assert "file-new" in [name for _, name in found["files"]]


def test_kept_data_are_chosen_if_they_still_exist(api: StubApi) -> None:
    assert choose(api, "page", data="file-odd").data == "file-odd"
    assert choose(api, "page", data="file-gone").data == "file-handbook"


def test_kept_columns_are_recalled_with_their_task(api: StubApi) -> None:
    mapping = {"prompt": "reply", "completion": "question"}
    found = choose(api, "page", data="file-odd", recalls=True, columns=mapping)
    assert found.entered == {"columns": mapping}
    other = choose(api, "page", data="file-odd", recalls=True, columns={"prompt": "gone"})
    assert other.entered == {"columns": GUESS}
    chosen = {"recalls": True, "task": CLASSIFICATION, "columns": {"text": "reply"}}
    labelled = choose(api, "page", data="file-odd", **chosen)
    assert labelled.defaults is not None
    assert labelled.defaults["task"] == CLASSIFICATION
    assert labelled.entered == {"columns": {"text": "reply"}}


def test_file_of_labelled_rows_selects_classification(api: StubApi) -> None:
    found = choose(api, "data", data="file-labels").to_message()
    assert found["task"] == CLASSIFICATION
    assert 'id="setting-problem-type"' in found["form"]
    assert choose(api, "data", task=CLASSIFICATION).to_message()["task"] == "causal_lm"
    assert "models" not in found
    assert "facts" not in found


def test_chosen_task_stays_until_model_or_data_change(api: StubApi) -> None:
    for change in ("task", "preset", "columns", "files"):
        assert choose(api, change, task=CLASSIFICATION).to_message()["task"] == CLASSIFICATION
    assert choose(api, "model", task=CLASSIFICATION).to_message()["task"] == "causal_lm"


def test_upload_is_chosen_once_it_is_checked(api: StubApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_menu, "CHECK_INTERVAL_S", 0.0)
    api.num_unchecked_reads = 2
    add_file(api, "file-new", status="uploaded")
    checked = {"status": "processed", "check": {"task": CLASSIFICATION}}
    api.checks["handbook.jsonl"] = checked
    found = choose(api, "data", data="file-new").to_message()
    assert api.num_unchecked_reads == 0
    assert found["task"] == CLASSIFICATION
    assert not any("being checked" in label for label, _ in found["files"])


def test_preset_and_what_was_entered_are_in_the_form(api: StubApi) -> None:
    entered = {"epochs": 7, "task_settings.labels": ["a"]}
    found = choose(api, "preset", preset="adapter", entered=entered).to_message()
    assert (found["preset"], found["entered"]) == ("adapter", entered)
    assert re.search('id="setting-epochs-input"[^>]*value="7"|value="7"[^>]*', found["form"])
    assert 'value="0.01"' in found["form"]
    assert ("Adapter (LoRA)", "adapter") in found["presets"]
    assert choose(api, "preset", preset="gone").to_message()["preset"] == "balanced"


def test_unknown_columns_are_guessed_and_entered(api: StubApi) -> None:
    found = choose(api, "data", data="file-odd", entered={"epochs": 2})
    assert found.entered == {"epochs": 2, "columns": GUESS}
    columns = found.to_message()["columns"]
    assert [menu["value"] for menu in columns["menus"][:2]] == ["question", "reply"]
    assert columns["menus"][0] == {"part": "prompt", "label": "Question", "value": "question"}
    assert columns["columns"] == ["question", "reply"]
    assert columns["is_open"]
    assert "guess" in columns["note"]


def test_columns_in_the_menus_are_entered_for_their_file(api: StubApi) -> None:
    mapping = {"prompt": "reply", "completion": "question"}
    chosen: dict[str, Any] = {"data": "file-odd", "columns": mapping}
    assert choose(api, "columns", fitted="file-odd", **chosen).entered == {"columns": mapping}
    assert choose(api, "columns", "data", fitted="file-1", **chosen).entered == {"columns": GUESS}


def test_run_is_shown_with_its_settings(api: StubApi) -> None:
    training = {"task": "causal_lm", "epochs": 9, "columns": {"prompt": "q"}}
    api.add_job("ftjob-1", "succeeded", training=training, user_provided_suffix="former")
    found = choose(api, "page", run="ftjob-1", data="file-odd", entered={"epochs": 4})
    assert (found.data, found.entered["epochs"]) == ("file-handbook", 9)
    assert found.to_message()["name"] == "former"
    gone = choose(api, "page", run="ftjob-2")
    assert gone.former is not None
    assert "cannot be shown" in gone.former.notice
    assert gone.to_message()["name"] == ""


def test_without_models_there_is_no_form(api: StubApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_choice, "list_model_choices", lambda _: [])
    found = choose(api, "page").to_message()
    assert (found["model"], found["form"], found["presets"]) == (None, "", [])


def test_unknown_file_is_reported(api: StubApi) -> None:
    with pytest.raises(ApiClientError, match="no file"):
        choose(api, "model", data="file-gone")


def test_kept_columns_are_not_those_of_another_file(api: StubApi) -> None:
    add_file(api, "file-other", status="error", error_code="unknown_columns")
    api.rows.rows["file-handbook"] = [{"question": "Why?", "reply": "Because."}]
    kept = {"recalls": True, "columns": {"prompt": "reply"}, "task": CLASSIFICATION}
    found = choose(api, "page", data="file-gone", **kept)
    assert found.data == "file-handbook"
    assert "columns" not in found.entered
    assert found.to_message()["task"] == "causal_lm"
