"""What the view of one run requests and shows."""

import pytest

from apps.client.client import ApiClient
from apps.client.errors import RequestRefusedError
from apps.ui.runs import run_view
from apps.ui.runs.run_view import read_events, read_run
from apps.ui.runs.view_request import ViewRequest
from apps.ui.tab_state import (
    NO_EVENTS,
    Content,
    Known,
    KnownEvents,
    TabState,
    write_message,
)
from tests.apps.stub_api import HOSTILE, StubApi, ask
from tests.apps.stub_runs import STEPS, make_checkpoint, make_metrics

PROGRESS = {"step": 2, "num_steps": STEPS, "loss": 3.0, "tokens_per_s": 10.0, "remaining_s": 3.0}
INTERVALS = (1.0, 9.0)


def read(api: StubApi, state: TabState | None = None, **asked: object) -> Content:
    request = ViewRequest.model_validate({"view": "run", "run": "ftjob-1", **asked})
    return ask(api, lambda client: read_run(client, request, state or TabState(), INTERVALS))


def keep(content: Content) -> TabState:
    """Return the state of a tab that has the content."""
    return write_message(content, TabState())[1]


def test_running_run_is_shown(api: StubApi) -> None:
    api.add_job("ftjob-1", "running", progress=PROGRESS, training={"epochs": 9})
    api.add_event("ftjob-1", "Training started")
    content = read(api)
    assert "2 of 5" in content.parts["run"]
    assert "pause-button" in content.parts["run-buttons"]
    assert "9" in content.parts["run-settings"]
    assert content.lists["events"] == ["ftevent-000001"]
    assert "Training started" in content.parts["events/ftevent-000001"]
    assert content.values["interval_s"] == 1
    curves = content.additions["curves"]
    assert isinstance(curves, dict)
    assert curves["columns"]["loss"] == [4, 3.9]


def test_settings_are_read_once(api: StubApi) -> None:
    api.add_job("ftjob-1", "succeeded", fine_tuned_model="base-tuned", training={"epochs": 9})
    first = read(api)
    assert "run-settings" in first.parts
    assert "base-tuned" in first.parts["run-result"]
    assert first.values["interval_s"] == 9
    assert "run-settings" not in read(api, keep(first)).parts
    failed = keep(Content({"notice": "The API does not answer"}))
    assert "run-settings" in read(api, failed).parts


def test_unknown_run_is_refused(api: StubApi) -> None:
    with pytest.raises(RequestRefusedError, match="ftjob-1"):
        read(api)


def test_metrics_events_are_not_shown(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    api.add_event("ftjob-1", "step 1", type="metrics")
    content = read(api)
    assert content.lists["events"] == []
    assert len(content.known.events.events) == 1


def test_log_is_read_only_while_it_is_open(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    assert "log" not in read(api).additions
    assert "logs" not in dict(api.queries)
    opened = read(api, has_log=True)
    text = f"log of ftjob-1: {HOSTILE}\n"  # the script shows it as text
    assert opened.additions["log"] == {"is_whole": True, "is_cut": False, "text": text}


def test_log_is_followed(api: StubApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "LOG_BYTES", 12)
    api.add_job("ftjob-1", "running")
    logs = api.runs.logs
    logs["ftjob-1"] = b"one\ntwo\n"
    state = keep(read(api, has_log=True))
    assert "log" not in read(api, state, has_log=True).additions
    logs["ftjob-1"] += "drei €\n".encode()
    content = read(api, state, has_log=True)
    assert content.additions["log"] == {"is_whole": False, "is_cut": True, "text": "drei €\n"}
    logs["ftjob-1"] += b"more than twelve bytes\n"
    content = read(api, keep(content), has_log=True)
    expected = {"is_whole": True, "is_cut": True, "text": "welve bytes\n"}
    assert content.additions["log"] == expected


def test_log_is_searched(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    api.runs.logs["ftjob-1"] = b"one\ntwo\nONE more\n"
    assert read(api, has_log=True, log_search="one").values["log_matches"] == "one\nONE more\n"
    assert read(api, has_log=True).values["log_matches"] is None


def test_models_are_listed_when_an_event_may_report_one(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    api.add_event("ftjob-1", "Saved a checkpoint at step 3")
    api.runs.checkpoints["ftjob-1"] = [make_checkpoint("ftjob-1", 3)]
    content = read(api)
    assert "data-publish" in content.parts["run-checkpoints"]
    api.runs.models["early"] = {"run_id": "ftjob-1", "checkpoint_step": 3}
    assert "data-publish" in read(api, keep(content)).parts["run-checkpoints"]
    api.add_event("ftjob-1", "Published as early")
    assert "published as" in read(api, keep(content)).parts["run-checkpoints"]


@pytest.mark.parametrize("num_steps", [100, 100_000])
def test_refresh_requests_bounded_part_of_long_run(api: StubApi, num_steps: int) -> None:
    api.add_job("ftjob-1", "running", progress={"step": num_steps, "num_steps": num_steps})
    api.runs.metrics["ftjob-1"] = make_metrics(num_steps)
    for step in range(num_steps // 100):
        api.add_event("ftjob-1", f"Saved a checkpoint at step {step}")
    content = read(api, has_log=True)
    queries = dict(api.queries)
    assert int(queries["metrics"]["max_points"]) <= 1000
    assert int(queries["events"]["limit"]) <= 100
    assert int(queries["logs"]["tail"]) <= 64_000
    api.queries.clear()
    read(api, keep(content))
    assert "newer_than" in dict(api.queries)["events"]
    assert dict(api.queries)["metrics"]["after_step"] == str(num_steps - 1)


def read_known(api: StubApi, run_id: str, known: KnownEvents = NO_EVENTS) -> KnownEvents:
    async def read_new(client: ApiClient) -> KnownEvents:
        return await read_events(client, run_id, known)

    return ask(api, read_new)


def test_refresh_adds_new_events_to_known_events(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    known = NO_EVENTS
    for number in range(250):
        api.add_event("ftjob-1", f"event {number}.")
        if number % 60 == 0:
            known = read_known(api, "ftjob-1", known)
    known = read_known(api, "ftjob-1", known)
    expected = [f"event {number}." for number in range(249, 149, -1)]
    assert [event.message for event in known.events] == expected


def test_refresh_reads_all_events_when_known_events_were_removed(api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    for number in range(3):
        api.add_event("ftjob-1", f"event {number}.")
    known = read_known(api, "ftjob-1")
    del api.events["ftjob-1"][:2]
    known = read_known(api, "ftjob-1", known)
    assert [event.message for event in known.events] == ["event 0."]


def test_view_of_other_run_does_not_show_former_events(api: StubApi) -> None:
    for name in ("ftjob-1", "ftjob-2"):
        api.add_job(name, "running")
        api.add_event(name, f"{name} has started")
    known = read_known(api, "ftjob-1")
    state = TabState(serial=1, known=Known(events=known))
    content = read(api, state, run="ftjob-2")
    assert [event.message for event in content.known.events.events] == ["ftjob-2 has started"]
