"""The page "Runs" through its functions, as its script calls them."""

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from apps.ui.runs.runs_frame import FRAME
from apps.ui.settings import UiSettings
from serving.openai.protocol import MAX_INTEGER
from tests.apps.stub_api import StubApi
from tests.apps.stub_runs import make_checkpoint, make_metrics
from tests.apps.ui.page_server import PageCaller, serve_page
from tests.waiting import wait_until
from training.spec import TrainingSpec

RUN = {"view": "run", "run": "ftjob-1"}


@pytest.fixture
def visitor(api: StubApi) -> Iterator[PageCaller]:
    with serve_page(UiSettings(api_url=api.url)) as url:
        visitor = PageCaller(url)
        yield visitor
        visitor.close()


class Tab:
    """A tab that keeps the number of the last message."""

    def __init__(self, visitor: PageCaller) -> None:
        self._visitor = visitor
        self._session = uuid.uuid4().hex
        self.applied = 0
        self.num_bytes = 0

    def ask(self, function: str = "update_runs", **asked: Any) -> dict[str, Any]:
        """Call a function and return its message; empty if nothing has changed."""
        data = {**asked, "applied": self.applied}
        number = self._visitor.find_function(function)
        result = self._visitor.call(number, [None], event_data=data, session_hash=self._session)
        assert result.success, result.text
        self.num_bytes = len(result.text)
        lines = result.text.split("data: ")
        completed = next(line for line in lines if "process_completed" in line)
        message, _ = json.loads(completed)["output"]["data"]
        if message.get("serial", self.applied) == self.applied:
            return {}
        self.applied = message["serial"]
        return dict(message)


def test_only_changes_are_sent(visitor: PageCaller, api: StubApi) -> None:
    job = api.add_job("ftjob-1", "running", progress={"step": 1, "num_steps": 9})
    tab = Tab(visitor)
    first = tab.ask(**RUN)
    assert first["base"] == 0
    assert {"run", "run-buttons", "run-settings"} <= first["parts"].keys()
    assert tab.ask(**RUN) == {}
    job["progress"] = {"step": 2, "num_steps": 9}
    second = tab.ask(**RUN)
    assert second["base"] == first["serial"]
    assert list(second["parts"]) == ["run"]
    assert second["additions"]["curves"]["columns"]["step"] == [2]
    tab.applied = 0  # as after a lost message
    assert tab.ask(**RUN)["parts"].keys() == first["parts"].keys()


def test_list_of_many_runs_sends_only_rows_that_changed(visitor: PageCaller, api: StubApi) -> None:
    for number in range(200):
        api.add_job(f"ftjob-{number}", "succeeded", progress={"step": 10, "num_steps": 10})
    tab = Tab(visitor)
    assert len(tab.ask(view="list")["lists"]["runs"]) == 50
    wait_until(lambda: not tab.ask(view="list").get("parts"), 20, "all sparklines have been sent")
    api.jobs["ftjob-199"]["status"] = "failed"
    assert list(tab.ask(view="list")["parts"]) == ["runs/ftjob-199"]
    assert tab.num_bytes < 3000


def test_refresh_size_does_not_grow_with_history(visitor: PageCaller, api: StubApi) -> None:
    def count_bytes() -> int:
        tab, size = Tab(visitor), 0
        for _ in range(2):
            api.queries.clear()
            before = api.num_sent_bytes
            tab.ask(**RUN)
            size = api.num_sent_bytes - before
        return size

    api.add_job("ftjob-1", "running", progress={"step": 1000, "num_steps": 2000})
    api.add_event("ftjob-1", "Training started")
    before = count_bytes()
    api.runs.metrics["ftjob-1"] = make_metrics(100_000)
    for number in range(3000):
        api.add_event("ftjob-1", f"Saved a checkpoint at step {number}")
        api.add_job(f"ftjob-{number + 200}", "succeeded")
    assert count_bytes() < 1.3 * before
    assert "files" not in dict(api.queries)


def test_unknown_run_is_reported(visitor: PageCaller) -> None:
    message = Tab(visitor).ask(view="run", run="ftjob-9")
    assert "There is no job &#x27;ftjob-9&#x27;" in message["parts"]["notice"]


def test_run_is_changed(visitor: PageCaller, api: StubApi) -> None:
    api.add_job("ftjob-1", "running", fine_tuned_model="tuned", resumable=True)
    api.runs.checkpoints["ftjob-1"] = [make_checkpoint("ftjob-1", 3)]
    tab = Tab(visitor)
    paused = tab.ask("change_run", **RUN, action="pause")
    assert paused["additions"]["end"] == {"action": "pause", "is_done": True}
    assert "resume-button" in paused["parts"]["run-buttons"]
    assert api.jobs["ftjob-1"]["status"] == "paused"
    publication = {"action": "publish", "checkpoint": "ftjob-1-step-3", "name": "early"}
    tab.ask("change_run", **RUN, **publication)
    assert api.runs.published == [("ftjob-1", "ftjob-1-step-3", "early")]
    api.jobs["ftjob-1"]["status"] = "succeeded"
    promoted = tab.ask("change_run", **RUN, action="promote")
    assert api.latest == "tuned"
    assert ">latest</span>" in promoted["parts"]["run-result"]
    deleted = tab.ask("change_run", **RUN, action="delete")
    assert (api.jobs, deleted["place"], deleted["lists"]["runs"]) == ({}, "list  ", [])


def test_refused_change_ends_the_wait(visitor: PageCaller, api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    answer = Tab(visitor).ask("change_run", view="list", run="ftjob-9", action="delete")
    assert answer["additions"]["end"] == {"action": "delete", "is_done": False}


def test_invalid_action_changes_nothing(visitor: PageCaller, api: StubApi) -> None:
    api.add_job("ftjob-1", "running")
    assert Tab(visitor).ask("change_run", **RUN, action="drop") == {}
    assert api.jobs["ftjob-1"]["status"] == "running"


def test_refused_extension_names_the_field_at_fault(visitor: PageCaller, api: StubApi) -> None:
    api.add_job("ftjob-1", "succeeded")
    tab = Tab(visitor)

    def extend(**asked: Any) -> dict[str, Any]:
        message = tab.ask("change_run", **RUN, action="extend", **asked)
        return dict(message["additions"]["end"])

    assert extend(epochs=501)["param"] == "epochs"
    assert extend(epochs=5, max_steps=501)["param"] == "max_steps"
    assert extend(epochs=5, name="taken")["param"] == "suffix"
    full = extend(epochs=5, name="large")
    assert (full["param"], full["is_of_api"]) == (None, True)
    assert full["error"].startswith("Models have 9 bytes")
    assert extend(epochs=5, max_steps=50)["run"] == "ftjob-1-extended"
    assert api.runs.extended[-1] == ("ftjob-1", {"epochs": 5, "max_steps": 50})


@pytest.mark.parametrize("epochs", [1e21, "many", 2.5])
def test_invalid_length_ends_the_wait(visitor: PageCaller, api: StubApi, epochs: object) -> None:
    api.add_job("ftjob-1", "succeeded")
    message = Tab(visitor).ask("change_run", **RUN, action="extend", epochs=epochs)
    end = message["additions"]["end"]
    assert (end["action"], end["is_done"], end["param"]) == ("extend", False, None)
    assert end["error"].startswith("The length is not a whole number")
    assert api.runs.extended == []


def test_fields_have_the_limits_of_the_settings() -> None:
    maximum = TrainingSpec.model_json_schema()["properties"]["epochs"]["maximum"]
    assert re.findall(r'type="number" step="1" max="(\d+)"', FRAME) == [
        str(maximum),
        str(MAX_INTEGER),
    ]
