"""The page shows the model, the data and the settings of an earlier run, to start it again."""

from typing import Any

from apps.client.resources import File
from apps.ui.fine_tune.former_run import FormerRun, read_former_run
from tests.apps.stub_api import StubApi, ask

MODELS = [("base (base)", "base")]
FILES = [File(id="file-handbook", filename="handbook.jsonl")]


def read(api: StubApi, run_id: str) -> FormerRun:
    return ask(api, lambda client: read_former_run(client, run_id, MODELS, FILES))


def add_run(api: StubApi, run_id: str = "ftjob-1", **changes: Any) -> None:
    training = {"task": "causal_lm", "epochs": 7, "columns": {"prompt": "q"}, "max_length": None}
    api.add_job(run_id, "succeeded", **{"training": training, **changes})


def test_settings_of_run_are_entered(api: StubApi) -> None:
    add_run(api, user_provided_suffix="mine")
    found = read(api, "ftjob-1")
    assert (found.model, found.data) == ("base", "file-handbook")
    assert found.entered == {"epochs": 7, "columns": {"prompt": "q"}}
    assert found.name == "mine"
    assert found.notice.endswith("of run mine (ftjob-1).")


def test_settings_of_task_are_those_of_the_run(api: StubApi) -> None:
    own = {"labels": ["a", "b"], "problem_type": "auto"}
    add_run(api, training={"task": "sequence_classification", "task_settings": own})
    found = read(api, "ftjob-1")
    assert found.defaults is not None
    assert found.defaults["task"] == "sequence_classification"
    assert found.entered == {"task_settings.labels": ["a", "b"]}


def test_deleted_data_is_reported(api: StubApi) -> None:
    add_run(api, training_file="file-gone", training_filename="old.csv")
    assert "old.csv, was deleted" in read(api, "ftjob-1").notice


def test_deleted_model_and_run_are_reported(api: StubApi) -> None:
    add_run(api, model="gone")
    assert read(api, "ftjob-1") == FormerRun(
        "The model of run ftjob-1, gone, does not exist any more."
    )
    assert "there is no job 'ftjob-3'" in read(api, "ftjob-3").notice.lower()
