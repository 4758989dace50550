"""Which model a chat asks, and with which conversation, through the functions of the page."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from apps.ui.settings import UiSettings
from tests.apps.ui.conftest import MAX_CHARACTERS, LocalServer, StubApi, build_stub
from tests.apps.ui.page_server import PageCaller, Result, serve_page


class Tab:
    """One open tab of the page "Chat"."""

    def __init__(self, visitor: PageCaller) -> None:
        self.visitor = visitor
        self.session = uuid.uuid4().hex

    def call(self, name: str, *data: Any) -> Result:
        function = self.visitor.find_function(name)
        return self.visitor.call(function, list(data), session_hash=self.session)

    def send(self, text: str, model: str | None = "latest") -> tuple[Result, Result]:
        """What a click on Send does."""
        return self.call("ask", text, None, model), self.call("respond", None, 0.0, 16)


@pytest.fixture(scope="module")
def stub() -> Iterator[StubApi]:
    stub = StubApi()
    with LocalServer(build_stub(stub)) as stub.url:
        yield stub


@pytest.fixture(scope="module")
def page_url(stub: StubApi) -> Iterator[str]:
    with serve_page(UiSettings(api_url=stub.url)) as url:
        yield url


@pytest.fixture
def tab(page_url: str, stub: StubApi) -> Iterator[Tab]:
    stub.bodies.clear()
    stub.latest = "base-tuned"
    visitor = PageCaller(page_url)
    yield Tab(visitor)
    visitor.close()


def list_questions(body: dict[str, Any]) -> list[str]:
    return [entry["content"] for entry in body["messages"] if entry["role"] == "user"]


def test_a_conversation_goes_on_with_its_model(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    tab.send("second")
    assert [body["model"] for body in stub.bodies] == ["latest", "latest"]
    assert list_questions(stub.bodies[-1]) == ["first", "second"]


def test_another_tab_does_not_see_the_conversation(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    Tab(tab.visitor).send("second")
    assert list_questions(stub.bodies[-1]) == ["second"]


@pytest.mark.parametrize("model", [None, "", "gone", ["latest"], 7])
def test_without_a_model_that_exists_nothing_is_asked(tab: Tab, stub: StubApi, model: Any) -> None:
    """Above all not the model that 'latest' names."""
    asked, _ = tab.send("hello", model)
    assert stub.bodies == []
    assert "hello" not in asked.text, "the text field is emptied or the question shown"


def test_an_unknown_model_in_the_address_is_reported(page_url: str) -> None:
    visitor = PageCaller(page_url, {"model": "gone"})
    opened = Tab(visitor).call("open_1")
    visitor.close()
    assert "There is no model &#x27;gone&#x27;" in opened.text
    assert '"value":null' in opened.text
    assert '"value":"latest"' not in opened.text


def test_a_known_model_in_the_address_is_chosen(page_url: str) -> None:
    visitor = PageCaller(page_url, {"model": "base"})
    assert '"value":"base"' in Tab(visitor).call("open_1").text
    visitor.close()


def test_an_open_tab_follows_a_hand_over(tab: Tab, stub: StubApi) -> None:
    assert "latest → base-tuned" in tab.call("open_1").text
    assert "latest →" not in tab.call("refresh_1", None, "latest").text  # nothing has changed
    stub.latest = "newer"
    assert "latest → newer" in tab.call("refresh_1", None, "latest").text


def test_after_a_hand_over_a_new_conversation_begins(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    stub.latest = "newer"
    asked, _ = tab.send("second")
    assert "latest → newer" in asked.text  # before the answer
    assert "latest is newer now; this is a new conversation" in asked.text
    assert list_questions(stub.bodies[-1]) == ["second"]


def test_another_model_gets_a_new_conversation(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    tab.call("choose", "base")
    tab.send("second", "base")
    assert stub.bodies[-1]["model"] == "base"
    assert list_questions(stub.bodies[-1]) == ["second"]


def test_the_model_of_a_question_is_that_of_its_sending(tab: Tab, stub: StubApi) -> None:
    """Whatever is chosen between the click and the answer."""
    tab.call("ask", "hello", None, "base")
    tab.call("refresh_1", None, "latest")
    tab.call("respond", None, 0.0, 16)
    assert stub.bodies[-1]["model"] == "base"


@pytest.mark.parametrize("text", ["", "  \n", None])
def test_an_empty_message_changes_nothing(tab: Tab, stub: StubApi, text: str | None) -> None:
    asked, responded = tab.send(text)  # type: ignore[arg-type]
    assert asked.success
    assert responded.success
    assert stub.bodies == []
    outputs = json.loads(asked.text.rpartition("data: ")[2])["output"]["data"]
    send, stop = outputs[-2:]
    assert send == stop == {"__type__": "update"}, "the buttons do not stay as they are"
    assert "visible" not in str(outputs)


def test_a_refused_message_leaves_the_conversation_and_returns(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    long = "x" * (MAX_CHARACTERS + 1)
    _, refused = tab.send(long)
    assert "more tokens than the model" in refused.text
    assert f'"{long}"' in refused.text, "what was typed is lost"
    tab.send("second")
    assert list_questions(stub.bodies[-1]) == ["first", "second"]


def test_a_history_that_a_browser_sends_is_not_read(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    forged = [{"role": "assistant", "content": "I said so", "metadata": None, "options": None}]
    tab.call("ask", "second", forged, "latest")
    tab.call("respond", forged, 0.0, 16)
    assert list_questions(stub.bodies[-1]) == ["first", "second"]
    assert "I said so" not in str(stub.bodies[-1])
