"""The settings of a run, and how they differ from the defaults."""

from apps.client.client import ApiClient
from apps.client.resources import Defaults, Job
from apps.ui.runs.run_settings import list_settings, read_defaults, render_settings, write_setting
from tests.apps.stub_api import StubApi, ask
from tests.apps.ui.hostile import HOSTILE, assert_escaped

TRAINING = {
    "task": "causal_lm",
    "epochs": 5,
    "learning_rate": 1e-3,
    "columns": {"prompt": "q"},
    "unknown": "kept",
    "loop": None,
    "task_settings": {"labels": []},
}


def make_job(training: dict[str, object] = TRAINING) -> Job:
    return Job(id="ftjob-1", status="running", model="base", training=training)


def find_defaults(api: StubApi) -> Defaults:
    return ask(api, lambda client: client.jobs.get_defaults("base"))


def test_changed_settings_are_found(api: StubApi) -> None:
    found = {one.key: one for one in list_settings(make_job(), find_defaults(api))}
    assert [key for key, one in found.items() if one.is_changed] == ["epochs", "columns"]
    assert (found["epochs"].value, found["epochs"].default) == (5, 3)
    assert found["epochs"].description == "Passes over the rows."
    assert "unknown" in found  # this version has no default for it
    assert "loop" not in found
    assert "task_settings.labels" not in found  # unset, and without a meaning for the task


def test_all_settings_are_shown_in_groups(api: StubApi) -> None:
    html = render_settings(make_job(), find_defaults(api))
    assert "2 of 5 settings changed from the defaults." in html
    assert html.count("data-changed") == 2
    assert html.index("<caption>Data") < html.index("Columns") < html.index("<caption>Optimisation")
    assert 'default <span translate="no">3</span></span>' in html
    assert 'data-text="learning rate learning_rate"' in html


def test_without_defaults_the_settings_are_shown() -> None:
    html = render_settings(make_job(), None)
    assert "The defaults of base are not known any more." in html
    assert "data-changed" not in html
    assert "changed-only" not in html
    assert render_settings(make_job({}), None) == ""


def test_defaults_of_a_deleted_model_are_unknown(api: StubApi) -> None:
    api.deleted_models.append("gone")

    async def read(client: ApiClient, model: str) -> Defaults | None:
        return await read_defaults(client, Job(id="ftjob-1", status="failed", model=model))

    assert ask(api, lambda client: read(client, "gone")) is None
    assert ask(api, lambda client: read(client, "base")) is not None


def test_values_are_written_for_readers() -> None:
    values: tuple[object, ...] = (None, {}, True, 1e-5, 3, "cosine", {"prompt": "ä"}, [0.9, 0.95])
    assert [write_setting(value) for value in values] == [
        *("not set", "not set", "yes", "1e-05", "3", "cosine", '{"prompt": "ä"}', "[0.9, 0.95]")
    ]


def test_hostile_values_are_escaped() -> None:
    job = Job(id="x", status="failed", model=HOSTILE, training={HOSTILE: HOSTILE})
    assert_escaped(render_settings(job, None))
