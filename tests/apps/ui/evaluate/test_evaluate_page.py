"""The page "Evaluate" through its functions, as its script calls them."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from apps.ui.settings import UiSettings
from tests.apps.stub_api import StubApi
from tests.apps.stub_evaluations import add_sample_evaluations
from tests.apps.ui.page_server import PageCaller, serve_page

FORM = {"models": ["base-tuned", "base"], "rows": "file:file-handbook"}
NUMBERS = {"max_rows": "20", "max_tokens": "64"}
VIEW = {"view": "evaluation", "evaluation": "eval-2"}


@pytest.fixture
def visitor(api: StubApi) -> Iterator[PageCaller]:
    add_sample_evaluations(api.evaluations_of_models)
    with serve_page(UiSettings(api_url=api.url)) as url:
        visitor = PageCaller(url)
        yield visitor
        visitor.close()


class EvaluateTab:
    """A tab that keeps the number of the last message."""

    def __init__(self, visitor: PageCaller) -> None:
        self._visitor = visitor
        self._session = uuid.uuid4().hex
        self.applied = 0
        self.num_bytes = 0

    def ask(self, function: str = "update_evaluations", **asked: Any) -> dict[str, Any]:
        """Call a function and return its message."""
        data = {**asked, "applied": self.applied}
        number = self._visitor.find_function(function)
        result = self._visitor.call(number, [None], event_data=data, session_hash=self._session)
        assert result.success, result.text
        self.num_bytes = len(result.text)
        completed = next(
            line for line in result.text.split("data: ") if "process_completed" in line
        )
        message, _ = json.loads(completed)["output"]["data"]
        self.applied = message["serial"]
        return dict(message)


def test_only_changes_are_sent(visitor: PageCaller, api: StubApi) -> None:
    tab = EvaluateTab(visitor)
    first = tab.ask(**VIEW)
    assert first["base"] == 0
    assert len(first["lists"]["rows"]) == 10
    same = tab.ask(**VIEW)
    assert (same["serial"], same["parts"]) == (first["serial"], {})
    assert tab.num_bytes < 1500
    api.evaluations_of_models.evaluations["eval-2"]["num_done"] = 13
    assert list(tab.ask(**VIEW)["parts"]) == ["evaluation-progress"]
    tab.applied = 0  # as after a lost message
    assert tab.ask(**VIEW)["parts"].keys() == first["parts"].keys()


def test_menus_are_sent_once_and_on_request(visitor: PageCaller, api: StubApi) -> None:
    tab = EvaluateTab(visitor)
    assert "menus" in tab.ask()["values"]
    assert "menus" not in tab.ask()["values"]
    api.models = [{"id": "newer"}]
    assert "menus" not in tab.ask()["values"]
    assert "newer" in str(tab.ask(reads_menus=True)["values"]["menus"])


def test_evaluation_is_started(visitor: PageCaller, api: StubApi) -> None:
    message = EvaluateTab(visitor).ask("change_evaluations", action="start", **FORM, **NUMBERS)
    end = {"action": "start", "is_done": True, "evaluation": "eval-new4"}
    assert message["additions"]["end"] == end
    assert message["lists"]["evaluations"][0] == "eval-new4"
    assert api.evaluations_of_models.bodies == [
        {"models": FORM["models"], "file": "file-handbook", "max_rows": 20, "max_tokens": 64}
    ]


def test_problems_of_the_form_and_refusals_are_at_fields(visitor: PageCaller, api: StubApi) -> None:
    tab = EvaluateTab(visitor)
    message = tab.ask("change_evaluations", action="start", **FORM, max_rows="many")
    end = message["additions"]["end"]
    assert (end["is_done"], set(end["problems"])) == (False, {"max_rows", "max_tokens"})
    assert api.evaluations_of_models.bodies == []
    api.evaluations_of_models.fault = (400, "the rows of 'a.txt' have no answers", "file")
    message = tab.ask("change_evaluations", action="start", **FORM, **NUMBERS)
    problems = message["additions"]["end"]["problems"]
    assert problems == {"rows": "The rows of 'a.txt' have no answers"}


def test_evaluation_is_cancelled_then_deleted(visitor: PageCaller, api: StubApi) -> None:
    tab = EvaluateTab(visitor)
    refused = tab.ask("change_evaluations", action="delete", **VIEW)
    assert refused["additions"]["end"]["is_done"] is False
    cancelled = tab.ask("change_evaluations", action="cancel", **VIEW)
    assert cancelled["additions"]["end"] == {"action": "cancel", "is_done": True}
    assert "Cancelled" in cancelled["parts"]["evaluation"]
    deleted = tab.ask("change_evaluations", action="delete", **VIEW)
    assert deleted["additions"]["end"]["is_done"] is True
    assert deleted["lists"]["evaluations"] == ["eval-1", "eval-0"]
    assert "eval-2" not in api.evaluations_of_models.evaluations


def test_unknown_evaluation_is_reported(visitor: PageCaller) -> None:
    message = EvaluateTab(visitor).ask(view="evaluation", evaluation="eval-gone")
    assert "There is no evaluation" in message["parts"]["notice"]


def test_unknown_change_is_ignored(visitor: PageCaller, api: StubApi) -> None:
    number = visitor.find_function("change_evaluations")
    assert visitor.call(number, [None], event_data={"action": "publish"}).success
    assert api.evaluations_of_models.bodies == []
