"""The page "Compare" through its functions, without a browser."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from apps.client.errors import ApiClientError
from apps.ui.chat.model_menu import ModelMenu
from apps.ui.compare import compare_page
from apps.ui.settings import UiSettings
from tests.apps.stub_api import LocalServer, StubApi, build_stub
from tests.apps.ui.chat.test_chat_page import set_values
from tests.apps.ui.page_server import PageCaller, Result, serve_page

NOTE_PLACE = 3
"""The place of the note among the outputs of each function that lists models."""


class CompareTab:
    """One open tab of the page."""

    def __init__(self, visitor: PageCaller, names: list[str], *, is_opened: bool = True) -> None:
        self.visitor, self.names = visitor, names
        self.session = uuid.uuid4().hex
        if is_opened:
            self.call("open_compare", None)

    def call(self, name: str, *data: Any) -> Result:
        function = self.visitor.find_function(name)
        return self.visitor.call(function, list(data), session_hash=self.session)

    def send(self, text: str, **settings: Any) -> tuple[Result, Result]:
        asked = self.call("ask_all", text, None, None, set_values(**settings), self.names)
        return asked, self.call("respond_all", None)


@pytest.fixture
def stub() -> Iterator[StubApi]:
    stub = StubApi()
    with LocalServer(build_stub(stub)) as stub.url:
        yield stub


@pytest.fixture
def page_url(stub: StubApi) -> Iterator[str]:
    with serve_page(UiSettings(api_url=stub.url)) as url:
        yield url


@pytest.fixture
def tab(page_url: str) -> Iterator[CompareTab]:
    visitor = PageCaller(page_url, {"models": "base,latest"})
    yield CompareTab(visitor, ["base", "latest"])
    visitor.close()


def find_note(result: Result) -> str:
    """Return what a result shows in the place for notices."""
    note = result.outputs[NOTE_PLACE]
    assert note["visible"] is bool(note["value"])
    return str(note["value"])


def count_messages(stub: StubApi, model: str) -> list[int]:
    return [len(body["messages"]) for body in stub.bodies if body["model"] == model]


def test_histories_are_separate(tab: CompareTab, stub: StubApi) -> None:
    tab.send("first", system="Be brief", seed=3)
    _, second = tab.send("second")
    assert count_messages(stub, "base") == count_messages(stub, "latest") == [2, 3]
    assert {body["seed"] for body in stub.bodies[:2]} == {3}
    for model in ("base", "base-tuned"):
        assert f"./models?model={model}" in second.text


def test_questions_are_asked_on_their_own(tab: CompareTab, stub: StubApi) -> None:
    tab.send("first", earlier=False)
    tab.send("second", earlier=False)
    assert count_messages(stub, "base") == count_messages(stub, "latest") == [1, 1]


def test_failed_model_shows_reason_and_keeps_its_history(tab: CompareTab, stub: StubApi) -> None:
    tab.send("first")
    stub.busy_models = ["base"]
    _, second = tab.send("second")
    assert "all places are taken" in second.text.lower()
    stub.busy_models = []
    tab.send("third")
    assert count_messages(stub, "base") == [1, 3, 3]
    assert count_messages(stub, "latest") == [1, 3, 5]


def test_question_returns_to_field_if_all_models_fail(tab: CompareTab, stub: StubApi) -> None:
    stub.busy_models = ["base", "latest"]
    _, refused = tab.send("hello again")
    outputs = refused.outputs
    assert outputs[-1] == "hello again"


def test_unknown_models_are_reported(page_url: str) -> None:
    visitor = PageCaller(page_url, {"models": "gone,base"})
    opened = CompareTab(visitor, []).call("open_compare", None).text
    visitor.close()
    assert "There is no model &#x27;gone&#x27;" in opened
    assert '"value":["base"]' in opened


def test_base_and_latest_are_compared_by_default(page_url: str) -> None:
    visitor = PageCaller(page_url)
    assert '"value":["base","latest"]' in CompareTab(visitor, []).call("open_compare", None).text
    visitor.close()


def test_deleted_model_is_reported_in_its_column(tab: CompareTab, stub: StubApi) -> None:
    stub.models = [{"id": "third"}]
    tab.call("open_compare", None)
    tab.call("choose_models", None, None, ["third", "base"])
    stub.models = []
    asked, answered = tab.send("hello")
    assert "There is no model &#x27;third&#x27; any more" in asked.text
    assert "Hello there" in answered.text
    assert [body["model"] for body in stub.bodies] == ["base"]


def test_document_has_the_menu_of_models(page_url: str) -> None:
    visitor = PageCaller(page_url)
    menu = visitor.read_first_content("/compare")
    asked = visitor.read_first_content("/compare?models=latest,gone")
    visitor.close()
    assert (menu["elem_id"], menu["value"]) == ("compare-models", ["base", "latest"])
    assert ["base (base)", "base"] in menu["choices"]
    assert asked["value"] == ["latest"]


def test_question_before_the_page_is_opened_is_for_the_models_in_the_menu(
    page_url: str, stub: StubApi
) -> None:
    visitor = PageCaller(page_url)
    tab = CompareTab(visitor, ["base", "latest"], is_opened=False)
    _, answered = tab.send("hello")
    assert "Hello there" in answered.text
    opened = tab.call("open_compare", None)
    assert "Hello there" in opened.text
    assert [body["model"] for body in stub.bodies] == ["base", "latest"]
    visitor.close()


def test_models_are_chosen_although_the_page_could_not_be_opened(
    page_url: str, stub: StubApi
) -> None:
    visitor = PageCaller(page_url)
    tab = CompareTab(visitor, ["base", "latest"], is_opened=False)
    shown = tab.call("choose_models", None, None, ["base", "latest"])
    assert "There is no model" not in shown.text
    assert "Choose two to four models" not in shown.text
    _, answered = tab.send("hello")
    assert "Hello there" in answered.text
    visitor.close()


def test_error_is_removed_once_the_models_are_read(
    page_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> ModelMenu:
        raise ApiClientError("the list is not available")

    visitor = PageCaller(page_url)
    tab = CompareTab(visitor, ["base", "latest"], is_opened=False)
    with monkeypatch.context() as patch:
        patch.setattr(compare_page, "load_menu", fail)
        assert "the list is not available" in find_note(tab.call("open_compare", None))
        chosen = tab.call("choose_models", None, None, ["base", "latest"])
        assert "the list is not available" in find_note(chosen)
    asked, answered = tab.send("hello")
    assert find_note(asked) == ""
    assert "Hello there" in answered.text
    visitor.close()


def test_invalid_choice_of_models_is_ignored(tab: CompareTab) -> None:
    shown = tab.call("choose_models", None, None, [7, {"a": 1}, "base", "base", None])
    assert "Choose two to four models" in shown.text
    assert tab.call("choose_models", None, None, "base").success


def test_invalid_setting_is_named_at_its_field(tab: CompareTab, stub: StubApi) -> None:
    refused, _ = tab.send("hello", temperature=7)
    assert "Temperature is 7: enter a number from 0 to 2." in refused.text
    assert stub.bodies == []


def test_requests_of_all_columns_have_the_visitors_key(stub: StubApi) -> None:
    stub.permissions = ["text.generate"]
    with serve_page(UiSettings(api_url=stub.url)) as url:
        visitor = PageCaller(url, {"models": "base,latest"}, auth=("", "secret"))
        stub.keys.clear()
        CompareTab(visitor, []).send("hello")
        visitor.close()
    assert stub.keys == ["Bearer secret"] * 2
