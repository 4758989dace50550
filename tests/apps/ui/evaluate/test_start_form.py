"""The form that starts an evaluation: menus, checks, and refusals at its fields."""

from typing import Any

import pytest

from apps.client.errors import ApiTimeoutError, RequestRefusedError
from apps.client.resources import Job
from apps.ui.evaluate.evaluate_request import EvaluateAction
from apps.ui.evaluate.start_form import (
    complete_request,
    explain_refusal,
    list_rows,
    read_form,
    read_menus,
)
from tests.apps.stub_api import StubApi, ask

VALID = {"models": ("base", "latest"), "rows": "file:f-1", "max_rows": " 45 ", "max_tokens": "64"}


def make_action(**changes: Any) -> EvaluateAction:
    return EvaluateAction.model_validate({"action": "start", **VALID, **changes})


def test_form_becomes_a_request() -> None:
    assert read_form(make_action()) == (
        {"models": ["base", "latest"], "file": "f-1", "max_rows": 45, "max_tokens": 64},
        {},
    )
    request, _ = read_form(make_action(models=("base", ""), rows="job:ftjob-1"))
    assert request is not None
    assert (request["models"], request.get("job"), request.get("file")) == (
        ["base"],
        "ftjob-1",
        None,
    )


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"models": ()}, "models", "Choose a model"),
        ({"models": ("base", "base")}, "second_model", "the same"),
        ({"rows": ""}, "rows", "Choose rows"),
        ({"rows": "folder:x"}, "rows", "Choose rows"),
        ({"max_rows": "0"}, "max_rows", "from 1 to 2,000, got '0'"),
        ({"max_rows": "2001"}, "max_rows", "got '2001'"),
        ({"max_rows": "9" * 150}, "max_rows", "from 1 to 2,000"),
        ({"max_tokens": "1.5"}, "max_tokens", "from 1 to 4,096, got '1.5'"),
        ({"max_tokens": "²"}, "max_tokens", "got '²'"),
        ({"max_tokens": ""}, "max_tokens", "got ''"),
    ],
)
def test_problems_are_at_their_fields(changes: dict[str, Any], field: str, words: str) -> None:
    request, problems = read_form(make_action(**changes))
    assert request is None
    assert list(problems) == [field]
    assert words in problems[field]


@pytest.mark.parametrize(
    ("param", "field"),
    [
        ("models", "models"),
        ("model", "models"),
        ("models.0", "models"),
        ("models.1", "second_model"),
        ("models[1]", "second_model"),
        ("file", "rows"),
        ("job", "rows"),
        ("training.columns", "rows"),
        ("max_tokens", "max_tokens"),
        ("other", "start"),
        (None, "start"),
    ],
)
def test_refusal_is_at_the_field_that_it_names(param: str | None, field: str) -> None:
    refused = RequestRefusedError(400, "Bad Request", "the file has no answers", None, param)
    assert explain_refusal(refused) == {field: "The file has no answers"}


def test_other_failure_belongs_to_no_field() -> None:
    assert list(explain_refusal(ApiTimeoutError("http://api", "timed out"))) == ["start"]


def test_menus_group_models_and_rows(api: StubApi) -> None:
    api.models = [{"id": "tuned-adapter", "kind": "adapter", "base_model": "base"}]
    api.files.append({**api.files[0], "id": "file-labels", "check": {"task": "embedding"}})
    api.files.append({**api.files[0], "id": "file-broken", "status": "error"})
    api.add_job("ftjob-1", "succeeded", user_provided_suffix="mine", validation_file="file-v")
    api.add_job("ftjob-2", "running", validation_file="file-v")
    menus = ask(api, read_menus)
    groups = {entry["value"]: entry["group"] for entry in menus["models"]}
    assert groups == {
        "latest": "Aliases",
        "base-tuned": "Models",
        "base": "Models",
        "tuned-adapter": "Adapters",
    }
    assert [(entry["group"], entry["value"]) for entry in menus["rows"]] == [
        ("Files", "file:file-handbook"),
        ("Validation rows of runs", "job:ftjob-1"),
    ]
    assert menus["rows"][1]["label"] == "mine: validation rows (handbook.jsonl)"


def test_model_has_the_rows_of_its_run(api: StubApi) -> None:
    api.models = [{"id": name, "run_id": f"ftjob-{name}"} for name in ("one", "two", "three")]
    api.add_job("ftjob-one", "succeeded", validation_file="file-v")
    api.add_job("ftjob-two", "succeeded")
    api.add_job("ftjob-three", "succeeded", training_file="file-gone")
    rows = {entry["value"]: entry.get("rows") for entry in ask(api, read_menus)["models"]}
    assert [rows[name] for name in ("one", "two", "three")] == [
        "job:ftjob-one",
        "file:file-handbook",
        None,
    ]
    assert rows["base"] is None


def test_runs_without_validation_rows_are_not_offered() -> None:
    jobs = [
        Job(id="ftjob-1", status="succeeded", training={"validation_fraction": 0.1}),
        Job(id="ftjob-2", status="succeeded", training={"validation_fraction": 0}),
        Job(id="ftjob-3", status="failed", training={"validation_fraction": 0.1}),
        Job(
            id="ftjob-4",
            status="succeeded",
            training={"validation_fraction": 0.1, "task": "sequence_classification"},
        ),
    ]
    assert [entry["value"] for entry in list_rows([], jobs)] == ["job:ftjob-1"]


COLUMNS = {"prompt": "question", "completion": "reply"}


def test_file_with_names_of_its_own_is_read_as_by_its_newest_successful_run(api: StubApi) -> None:
    odd = {**api.files[0], "id": "file-odd", "status": "error", "error_code": "unknown_columns"}
    api.files.append(odd)
    request, _ = read_form(make_action(rows="file:file-odd"))
    assert request is not None
    for task, columns in (("sequence_classification", {"text": "question"}), ("causal_lm", {})):
        training = {"task": task, "columns": columns}
        api.add_job(f"ftjob-{task}", "succeeded", training_file="file-odd", training=training)
    assert "file:file-odd" not in [entry["value"] for entry in ask(api, read_menus)["rows"]]
    assert ask(api, lambda client: complete_request(client, request)) == request

    training = {"columns": COLUMNS}
    api.add_job("ftjob-odd", "succeeded", training_file="file-odd", training=training)
    swapped = {"columns": {"prompt": "reply", "completion": "question"}}
    api.add_job("ftjob-cancelled", "cancelled", training_file="file-odd", training=swapped)
    (entry,) = [one for one in ask(api, read_menus)["rows"] if one["value"] == "file:file-odd"]
    assert entry["label"].endswith(" · prompt: question · completion: reply")
    completed = ask(api, lambda client: complete_request(client, request))
    assert completed == {**request, "training": {"columns": COLUMNS}}
    other, _ = read_form(make_action(rows=f"file:{api.files[0]['id']}"))
    assert other is not None
    assert ask(api, lambda client: complete_request(client, other)) == other
