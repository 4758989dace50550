"""How the pages process API responses, without a browser."""

import gradio as gr
import pytest
from gradio.components import Component

from apps.client.client import ApiClient
from apps.client.resources import Model
from apps.ui.chat import chat_page
from apps.ui.fine_tune import fine_tune_page
from apps.ui.fine_tune.setting_fields import build_setting, flatten, flatten_schemas
from apps.ui.runs import runs_page
from apps.ui.runs.runs_page import NO_EVENTS, KnownEvents, View
from tests.apps.stub_api import HOSTILE, STEPS, StubApi, ask

PROGRESS = {"step": 2, "num_steps": STEPS, "loss": 3.0, "tokens_per_s": 10.0, "remaining_s": 3.0}


def test_active_run_is_shown_by_default(api: StubApi) -> None:
    api.add_job("ftjob-1", "running", progress=PROGRESS)
    api.add_job("ftjob-2", "queued")
    view = ask(api, lambda client: runs_page.read_view(client, ""))
    assert view.selected == "ftjob-1"
    assert view.is_active
    assert view.interval_s == runs_page.ACTIVE_INTERVAL_S
    assert 'data-points="2"' in view.curve
    assert HOSTILE in view.log  # not escaped, because a text field shows it


def test_selected_run_stays_selected(api: StubApi) -> None:
    api.add_job("ftjob-1", "succeeded", fine_tuned_model="base-tuned")
    api.add_job("ftjob-2", "failed", error={"message": "loss is nan"})
    view = ask(api, lambda client: runs_page.read_view(client, "ftjob-1"))
    assert view.selected == "ftjob-1"
    assert not view.is_active
    assert view.interval_s == runs_page.IDLE_INTERVAL_S


def test_unknown_run_is_reported_with_run_list(api: StubApi) -> None:
    api.add_job("ftjob-1", "failed")
    view = ask(api, lambda client: runs_page.read_view(client, "ftjob-9"))
    assert view.notice == "There is no job 'ftjob-9'"
    assert "ftjob-1" in view.run_list
    assert view.run == ""


def test_empty_run_list_shows_text(api: StubApi) -> None:
    view = ask(api, lambda client: runs_page.read_view(client, ""))
    assert "No runs yet" in view.run_list


def test_requested_cancellation_is_shown_until_it_ends_or_times_out(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    api.add_event("ftjob-1", "Cancelling", code="cancel_requested")
    assert ask(api, lambda client: runs_page.read_view(client, "ftjob-1")).is_cancelling
    api.add_event("ftjob-1", "Queued again", code="queued")
    assert not ask(api, lambda client: runs_page.read_view(client, "ftjob-1")).is_cancelling
    del api.events["ftjob-1"][0]
    api.events["ftjob-1"][0]["created_at"] -= 10 * runs_page.CANCEL_PATIENCE_S
    assert not ask(api, lambda client: runs_page.read_view(client, "ftjob-1")).is_cancelling


def test_paused_run_can_be_resumed(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    api.add_event("ftjob-1", "Pausing after this step", code="pause_requested")
    assert ask(api, lambda client: runs_page.read_view(client, "ftjob-1")).is_pausing
    assert ask(api, lambda client: client.jobs.pause("ftjob-1")).is_paused
    view = ask(api, lambda client: runs_page.read_view(client, "ftjob-1"))
    assert (view.is_active, view.is_paused, view.is_pausing) == (False, True, False)
    assert "resumes from its last checkpoint" in view.run
    assert ask(api, lambda client: client.jobs.resume("ftjob-1")).is_active


def test_queued_run_shows_reason_for_waiting(api: StubApi) -> None:
    api.add_job("ftjob-1", "queued", waiting_for="number 2 in the queue")
    view = ask(api, lambda client: runs_page.read_view(client, "ftjob-1"))
    assert "Waiting: number 2 in the queue" in view.run


def test_each_type_of_setting_has_its_field(api: StubApi) -> None:
    async def build(client: ApiClient) -> dict[str, Component]:
        defaults = await client.jobs.get_defaults("base", "sequence_classification")
        values = flatten(defaults.training)
        with gr.Blocks(analytics_enabled=False):
            return {
                key: build_setting(key, schema, values[key])
                for key, schema in flatten_schemas(defaults.schemas).items()
            }

    fields = ask(api, build)
    kinds = {key: type(field) for key, field in fields.items()}
    assert kinds == {
        "epochs": gr.Number,
        "learning_rate": gr.Number,
        "offload_optimizer": gr.Checkbox,
        "warmup_ratio": gr.Number,
        "max_length": gr.Textbox,
        "precision": gr.Dropdown,
        "columns": gr.Textbox,
        "adapter": gr.Textbox,
        "task_settings.problem_type": gr.Dropdown,
        "task_settings.labels": gr.Textbox,
    }
    assert fields["task_settings.problem_type"].elem_id == "setting-problem-type"
    assert fields["learning_rate"].elem_id == "setting-learning-rate"


def test_menus_name_alias_base_model_and_handbook(api: StubApi) -> None:
    models = ask(api, chat_page.list_chat_models)
    assert chat_page.list_choices(models) == [
        ("latest → base-tuned", "latest"),
        ("base-tuned", "base-tuned"),
        ("base (base)", "base"),
    ]
    assert fine_tune_page.list_model_choices(models)[0] == ("base (base)", "base")
    files = ask(api, lambda client: client.files.list_all())
    assert fine_tune_page.list_file_choices(files)[0] == ("The bundled handbook", "file-handbook")


def test_model_is_found_by_alias() -> None:
    model = Model(id="tuned", aliases=("latest",))
    assert chat_page.find_model([model], "latest") is model
    assert chat_page.find_model([model], "gone") is None


@pytest.mark.parametrize("num_steps", [100, 100_000])
def test_refresh_requests_bounded_part_of_long_run(api: StubApi, num_steps: int) -> None:
    api.add_job("ftjob-1", "running", progress={"step": num_steps, "num_steps": num_steps})
    for step in range(num_steps // 100):
        api.add_event("ftjob-1", f"Saved a checkpoint at step {step}")
    view = ask(api, lambda client: runs_page.read_view(client, "ftjob-1"))
    queries = dict(api.queries)
    assert int(queries["metrics"]["max_points"]) <= 500
    assert int(queries["events"]["limit"]) <= 100
    assert int(queries["logs"]["tail"]) <= 20_000
    points = int(view.curve.partition('data-points="')[2].partition('"')[0])
    assert min(num_steps, 250) <= points <= 500
    assert f"<span>{num_steps:,}</span>" in view.curve  # the axis ends with the last step
    api.queries.clear()
    view_run(api, "ftjob-1", view.known)
    assert "newer_than" in dict(api.queries)["events"]


def view_run(api: StubApi, run_id: str, known: KnownEvents = NO_EVENTS) -> View:
    return ask(api, lambda client: runs_page.read_view(client, run_id, known))


def test_refresh_adds_new_events_to_known_events(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    known = NO_EVENTS
    for number in range(250):
        api.add_event("ftjob-1", f"event {number}.")
        if number % 60 == 0:
            known = view_run(api, "ftjob-1", known).known
    view = view_run(api, "ftjob-1", known)
    expected = [f"event {number}." for number in range(249, 149, -1)]
    assert [event.message for event in view.known.events] == expected
    assert all(message in view.events for message in expected)


def test_refresh_reads_all_events_when_known_events_were_removed(
    api: StubApi,
) -> None:
    api.add_job("ftjob-1", "running")
    for number in range(3):
        api.add_event("ftjob-1", f"event {number}.")
    known = view_run(api, "ftjob-1").known
    del api.events["ftjob-1"][:2]
    view = view_run(api, "ftjob-1", known)
    assert [event.message for event in view.known.events] == ["event 0."]


def test_view_of_other_run_does_not_show_former_events(api: StubApi) -> None:
    for name in ("ftjob-1", "ftjob-2"):
        api.add_job(name, "running")
        api.add_event(name, f"{name} has started")
    known = view_run(api, "ftjob-1").known
    view = view_run(api, "ftjob-2", known)
    assert "ftjob-2 has started" in view.events
    assert "ftjob-1 has started" not in view.events
