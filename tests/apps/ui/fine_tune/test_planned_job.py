"""The job that the fields describe: its check, its start, and its settings as text."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from apps.client.client import ApiClient
from apps.ui.fine_tune.fine_tune_request import (
    FieldsRequest,
    FineTuneAction,
    read_fields_request,
    read_fine_tune_action,
)
from apps.ui.fine_tune.planned_job import (
    check_job,
    fill_in_settings,
    read_form,
    start_job,
    write_settings,
)
from apps.ui.fine_tune.setting_form import SettingForm
from tests.apps.stub_api import StubApi, ask

CLASSIFICATION = "sequence_classification"
CHOICE = {"model": "base", "task": "causal_lm", "data": "file-handbook"}


@pytest.fixture
def use(api: StubApi) -> Callable[..., Any]:
    """Call a function about a job with some fields changed; other arguments replace the choice."""

    def call(
        function: Callable[[ApiClient, Any], Awaitable[Any]],
        changes: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        async def run(client: ApiClient) -> Any:
            chosen = {**CHOICE, **more}
            form = await read_form(client, read_fields_request(CHOICE | {"task": chosen["task"]}))
            asked = {"fields": {**form.values, **(changes or {})}, "action": "start", **chosen}
            return await function(client, read_fine_tune_action(asked))

        return ask(api, run)

    return call


def test_job_has_what_differs_from_the_defaults(use: Any, api: StubApi) -> None:
    end = use(start_job, {"epochs": 7}, name=" mine ", task=CLASSIFICATION)
    assert (end["is_done"], end["run"] in api.jobs) == (True, True)
    body = api.bodies[-1]
    assert (body["model"], body["training_file"], body["suffix"]) == (
        "base",
        "file-handbook",
        "mine",
    )
    assert body["training"] == {"epochs": 7, "task": CLASSIFICATION}


def test_check_and_start_return_the_problems_of_fields(use: Any, api: StubApi) -> None:
    message = "Learning rate is 0: it should be greater than 0."
    problem = {"id": "setting-learning-rate", "message": message}
    verdict = {"problems": [problem], "reason": message, "is_temporary": False}
    assert use(check_job, {"learning_rate": 0}) == {**verdict, "estimate": ""}
    assert use(start_job, {"learning_rate": 0}) == {"is_done": False, "verdict": verdict}
    empty = use(check_job, {"epochs": None})
    assert [problem["id"] for problem in empty["problems"]] == ["setting-epochs"]
    assert not api.jobs


def test_check_reports_whether_the_file_is_still_being_checked(use: Any, api: StubApi) -> None:
    assert "is_being_checked" not in use(check_job)
    api.files[0]["status"] = "uploaded"
    api.num_unchecked_reads = 2
    api.checks[api.files[0]["filename"]] = {"status": "processed"}
    found = [use(check_job, waits_for_file=True)["is_being_checked"] for _ in range(2)]
    assert found == [True, False]
    assert use(check_job, waits_for_file=True, data="file-gone")["is_being_checked"] is False


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": ""}, "Choose a model and data first."),
        ({"model": ""}, "Choose a model and data first."),
        ({"fields": {"epochs": 3}}, "The settings of this model have changed"),
        ({"fields": {}}, "The settings of this model have changed"),
    ],
)
def test_fields_of_another_choice_do_not_start(
    use: Any, api: StubApi, changes: dict[str, Any], reason: str
) -> None:
    for function in (check_job, start_job):
        answer = use(function, **changes)
        assert answer.get("verdict", answer)["reason"].startswith(reason)
    assert not api.jobs
    assert not api.estimates


def test_valid_settings_have_an_estimate(use: Any, api: StubApi) -> None:
    found = use(check_job, {"epochs": 2}, task=CLASSIFICATION, name="me")
    assert found["reason"] == ""
    assert "80 steps" in found["estimate"]
    assert api.estimates[-1]["suffix"] == "me"
    assert api.estimates[-1]["training"] == {"epochs": 2, "task": CLASSIFICATION}


def test_settings_are_written_as_text(use: Any) -> None:
    assert "epochs: 5" in use(write_settings, {"epochs": 5}, form="yaml")
    assert use(write_settings, form="command").startswith("tuneserve jobs create")
    for changes, more, beginning in (
        ({"epochs": None}, {}, "Epochs is empty"),
        ({}, {"fields": {}}, "The settings of this model"),
        ({}, {"model": ""}, "Choose a model"),
        ({}, {"data": "file-gone"}, "There is no file"),
    ):
        assert use(write_settings, changes, **more).startswith(beginning)


def test_settings_are_filled_in(use: Any) -> None:
    assert use(fill_in_settings, text="epochs: 4") == {"is_done": True, "entered": {"epochs": 4}}
    bad = use(fill_in_settings, text="rate: 4")
    assert (bad["is_done"], "rate" in bad["problem"]) == (False, True)
    assert use(fill_in_settings, text="", model="")["problem"] == "Choose a model and data first."


def test_fields_are_those_of_the_chosen_task(use: Any) -> None:
    async def read(client: ApiClient, asked: FineTuneAction) -> SettingForm:
        return await read_form(client, asked)

    form = use(read, task=CLASSIFICATION)
    assert "task_settings.problem_type" in form.schemas
    assert form.has_fields(form.values)
    assert not form.has_fields(FieldsRequest().fields)
