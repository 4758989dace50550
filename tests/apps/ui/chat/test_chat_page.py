"""The model and the conversation of a chat, through the functions of the page."""

import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from apps.ui.chat.sampling_settings import get_defaults
from apps.ui.settings import UiSettings
from tests.apps.stub_api import MAX_CHARACTERS, LocalServer, StubApi, build_stub
from tests.apps.ui.page_server import PageCaller, Result, serve_page
from tests.waiting import wait_until


def set_values(**changes: Any) -> dict[str, Any]:
    """Return the values of the settings as a browser sends them."""
    return {**get_defaults(), "max_tokens": 16, **changes}


class Tab:
    """One open tab of the page "Chat"."""

    def __init__(self, visitor: PageCaller) -> None:
        self.visitor = visitor
        self.session = uuid.uuid4().hex

    def call(self, name: str, *data: Any) -> Result:
        function = self.visitor.find_function(name)
        return self.visitor.call(function, list(data), session_hash=self.session)

    def start(self, name: str, *data: Any) -> str:
        """Call a function without waiting for its end; returns the id of the event."""
        function = self.visitor.find_function(name)
        answer = self.visitor.join(function, list(data), session_hash=self.session)
        answer.raise_for_status()
        return str(answer.json()["event_id"])

    def send(self, text: str, model: str | None = "latest") -> tuple[Result, Result]:
        """Call the functions of a click on Send."""
        return self.ask(text, model), self.respond()

    def ask(self, text: Any, model: Any = "latest", **settings: Any) -> Result:
        """Call the function that adds a question."""
        return self.call("ask", text, None, None, model, set_values(**settings))

    def respond(self) -> Result:
        """Call the function that streams the answer."""
        return self.call("respond", None)

    def call_with(self, name: str, event_data: dict[str, Any], *data: Any) -> Result:
        """Call a function with the data of its event."""
        function = self.visitor.find_function(name)
        return self.visitor.call(
            function, list(data), session_hash=self.session, event_data=event_data
        )

    def choose(self, model: Any, text: str = "") -> Result:
        """Call the function of a choice in the menu; `text` is the content of the text field."""
        return self.call("choose", None, None, model, text)


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
    stub.answering_models.clear()
    stub.holds.clear()
    stub.models.clear()
    stub.jobs.clear()
    stub.runs.checkpoints.clear()
    visitor = PageCaller(page_url)
    yield Tab(visitor)
    visitor.close()


def list_questions(body: dict[str, Any]) -> list[str]:
    return [entry["content"] for entry in body["messages"] if entry["role"] == "user"]


def test_conversation_continues_with_its_model(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    tab.send("second")
    assert [body["model"] for body in stub.bodies] == ["latest", "latest"]
    assert list_questions(stub.bodies[-1]) == ["first", "second"]


def test_conversation_is_not_shared_between_tabs(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    Tab(tab.visitor).send("second")
    assert list_questions(stub.bodies[-1]) == ["second"]


@pytest.mark.parametrize("model", [None, "", "gone", ["latest"], 7])
def test_question_without_valid_model_is_not_sent(tab: Tab, stub: StubApi, model: Any) -> None:
    """In particular, the question is not sent to the model that 'latest' names."""
    tab.call("open_chat", None, "")
    tab.choose(model)
    asked, _ = tab.send("hello", model)
    assert stub.bodies == []
    assert "hello" not in asked.text, "the text field was emptied, or the question was shown"


@pytest.mark.parametrize("name", [None, ""])
def test_question_that_is_sent_before_the_browser_shows_the_model_is_answered(
    tab: Tab, stub: StubApi, name: Any
) -> None:
    tab.call("open_chat", None, "")
    tab.ask("hello", name, temperature=0.5)
    tab.respond()
    (body,) = stub.bodies
    assert (body["model"], list_questions(body)) == ("latest", ["hello"])
    assert body["temperature"] == 0.5


@pytest.mark.parametrize("name", [None, ""])
def test_question_that_is_sent_before_the_page_is_filled_waits_for_it(
    tab: Tab, stub: StubApi, name: Any
) -> None:
    settings = set_values(temperature=0.5, max_tokens=7)
    tab.start("ask", "hello", None, None, name, settings)
    assert "latest → base-tuned" in tab.call("open_chat", None, "").text
    wait_until(lambda: tab.respond() and stub.bodies, 20, "the question is sent")
    (body,) = stub.bodies
    assert (body["model"], list_questions(body)) == ("latest", ["hello"])
    assert (body["temperature"], body["max_tokens"]) == (0.5, 7)


def test_question_is_refused_if_the_page_could_not_be_filled(page_url: str, stub: StubApi) -> None:
    stub.bodies.clear()
    visitor = PageCaller(page_url, {"model": "gone"})
    tab = Tab(visitor)
    tab.start("ask", "hello", None, None, None, set_values())
    tab.call("open_chat", None, "")
    tab.send("hello again", None)
    visitor.close()
    assert stub.bodies == []


def test_unknown_model_in_url_is_reported(page_url: str) -> None:
    visitor = PageCaller(page_url, {"model": "gone"})
    opened = Tab(visitor).call("open_chat", None, "")
    visitor.close()
    assert "There is no model &#x27;gone&#x27;" in opened.text
    assert '"value":null' in opened.text
    assert '"value":"latest"' not in opened.text


def test_known_model_in_url_is_selected(page_url: str) -> None:
    visitor = PageCaller(page_url, {"model": "base"})
    assert '"value":"base"' in Tab(visitor).call("open_chat", None, "").text
    visitor.close()


def test_open_tab_shows_moved_alias(tab: Tab, stub: StubApi) -> None:
    assert "latest → base-tuned" in tab.call("open_chat", None, "").text
    assert "latest →" not in tab.call("refresh_chat", None, "latest").text  # nothing has changed
    stub.latest = "newer"
    refreshed = tab.call("refresh_chat", None, "latest").text
    assert "latest → newer" in refreshed
    assert '"value":' not in refreshed, "the selected model was replaced"


def test_deleted_model_is_deselected(tab: Tab, stub: StubApi) -> None:
    tab.call("open_chat", None, "")
    stub.latest = "newer"
    assert '"value":null' in tab.call("refresh_chat", None, "gone").text


def test_moved_alias_starts_new_conversation(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    stub.latest = "newer"
    asked, _ = tab.send("second")
    assert "latest → newer" in asked.text  # shown before the answer
    assert "latest points to newer now; this is a new conversation" in asked.text
    assert list_questions(stub.bodies[-1]) == ["second"]


def test_change_of_model_starts_new_conversation(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    tab.choose("base")
    tab.send("second", "base")
    assert stub.bodies[-1]["model"] == "base"
    assert list_questions(stub.bodies[-1]) == ["second"]


def test_conversation_continues_when_its_model_is_chosen_again(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    assert "Each model has its own conversation" in tab.choose("base").text
    tab.send("second", "base")
    again = tab.choose("latest")
    assert '"first"' in again.text
    assert '"second"' not in again.text
    tab.send("third")
    assert list_questions(stub.bodies[-1]) == ["first", "third"]
    tab.choose("base")
    tab.send("fourth", "base")
    assert list_questions(stub.bodies[-1]) == ["second", "fourth"]


def test_hand_over_of_generator_starts_new_conversation(tab: Tab, stub: StubApi) -> None:
    """The alias moved before the first question; the generator switches after it."""
    stub.latest = "newer"
    stub.answering_models = ["base-tuned"]
    asked, first = tab.send("first")
    assert "latest → newer" in asked.text
    assert "latest pointed to newer when you asked, but base-tuned answered" in first.text
    _, second = tab.send("second")
    assert "newer answered instead of base-tuned; this is a new conversation" in second.text
    assert ">newer</a>" in second.text
    assert list_questions(stub.bodies[-1]) == ["second"]
    tab.send("third")
    assert list_questions(stub.bodies[-1]) == ["second", "third"]


def test_conversation_continues_while_generator_keeps_former_model(tab: Tab, stub: StubApi) -> None:
    """This happens if the model that the alias points to does not fit in memory."""
    stub.latest = "newer"
    stub.answering_models = ["base-tuned"] * 3
    for text in ("first", "second", "third"):
        _, responded = tab.send(text)
        assert "latest pointed to newer when you asked, but base-tuned" in responded.text
    assert list_questions(stub.bodies[-1]) == ["first", "second", "third"]


def test_question_sent_before_change_of_model_is_processed_is_answered(
    tab: Tab, stub: StubApi
) -> None:
    tab.send("first")
    tab.ask("second", "base")
    assert '"second"' not in tab.choose("base").text, (
        "the question was removed from the conversation"
    )
    assert ">base</a>" in tab.respond().text
    assert list_questions(stub.bodies[-1]) == ["second"]


def test_question_sent_before_change_of_model_continues_the_conversation_with_that_model(
    tab: Tab, stub: StubApi
) -> None:
    tab.send("one")
    tab.choose("base")
    tab.ask("two", "base")
    tab.respond()
    tab.ask("three", "latest")  # before the choice of the model is processed
    tab.choose("latest")
    tab.respond()
    assert list_questions(stub.bodies[-1]) == ["one", "three"]
    tab.choose("base")
    tab.ask("four", "base")
    tab.respond()
    assert list_questions(stub.bodies[-1]) == ["two", "four"]


def test_concurrent_change_of_model_and_question_lose_no_question(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    held = threading.Event()
    stub.holds.append(held)
    events = {
        tab.start("choose", None, None, "base", ""),
        tab.start("ask", "second", None, None, "base", set_values()),
    }
    for event_id, _ in tab.visitor.follow(tab.session):
        held.set()  # lets the other call, which waits for the model list, continue
        events.remove(event_id)
        if not events:
            break
    assert ">base</a>" in tab.respond().text
    assert list_questions(stub.bodies[-1]) == ["second"]


def test_question_before_the_page_is_opened_waits_for_its_conversation(
    tab: Tab, stub: StubApi
) -> None:
    held = threading.Event()
    stub.holds.append(held)
    opened = tab.start("open_chat", None, "")
    wait_until(lambda: not stub.holds, 20, "the page is being opened")
    asked = tab.start("ask", "hello", None, None, "latest", set_values())
    threading.Timer(0.5, held.set).start()  # a question that does not wait is asked by then
    ended = []
    for event_id, _ in tab.visitor.follow(tab.session):
        ended.append(event_id)
        if len(ended) == 2:
            break
    assert ended == [opened, asked]
    assert "Hello there" in tab.respond().text
    assert list_questions(stub.bodies[-1]) == ["hello"]


def test_question_stays_in_field_if_model_changes_before_it_is_sent(
    tab: Tab, stub: StubApi
) -> None:
    held = threading.Event()
    stub.holds.append(held)
    asked = tab.start("ask", "second", None, None, "latest", set_values())
    wait_until(lambda: not stub.holds, 20, "the question waits for the models")
    chosen = tab.start("choose", None, None, "base", "second")
    results = {}
    for event_id, result in tab.visitor.follow(tab.session):
        results[event_id] = result
        held.set()
        if len(results) == 2:
            break
    assert list(results) == [chosen, asked]
    assert "Another model was chosen before the question was sent" in results[asked].text
    assert "second" not in results[asked].text.rpartition("data: ")[2]
    tab.respond()
    assert stub.bodies == []


def test_unanswered_question_returns_to_field_when_model_changes(tab: Tab, stub: StubApi) -> None:
    tab.ask("hello", "latest")
    assert '"hello"' in tab.choose("base").text
    tab.respond()
    assert stub.bodies == []
    tab.ask("hello", "latest")
    assert '"hello"' not in tab.choose("base", "something else").text


def test_question_is_answered_once_and_before_next_question(tab: Tab, stub: StubApi) -> None:
    """The Enter key submits a question even while the button is hidden."""
    tab.ask("first", "latest")
    asked = tab.ask("second", "latest")
    assert "still being answered" in asked.text
    tab.respond()
    tab.respond()
    assert [list_questions(body) for body in stub.bodies] == [["first"]]
    tab.send("second")
    assert list_questions(stub.bodies[-1]) == ["first", "second"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_tokens", 16.5, "Maximum number of tokens is 16.5: enter a whole number."),
        ("max_tokens", None, "Maximum number of tokens is empty: enter a number."),
        ("temperature", "1", "Temperature is '1': enter a number."),
        ("stop", "a\nb\nc\nd\ne", "Stop texts has 5 lines: enter at most 4."),
    ],
)
def test_invalid_setting_is_named_at_its_field(
    tab: Tab, stub: StubApi, name: str, value: Any, message: str
) -> None:
    refused = tab.ask("hello", **{name: value})
    outputs = refused.outputs
    (panel,) = [output for output in outputs if output and "faults" in output.get("props", {})]
    assert panel["props"]["faults"]["messages"] == {name: message}
    assert panel["props"]["faults"]["sent"] == set_values(**{name: value})
    assert "hello" not in str(outputs), "the typed text was lost, or the question was shown"
    tab.respond()
    assert stub.bodies == []
    tab.send("again")
    assert list_questions(stub.bodies[-1]) == ["again"]


def test_settings_are_sent(tab: Tab, stub: StubApi) -> None:
    tab.ask("hello", system=" Be brief ", top_p=0.5, seed=7, max_tokens=24.0, stop="a\n\\n")
    tab.respond()
    body = stub.bodies[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief"}
    expected = {"temperature": 0.0, "top_p": 0.5, "seed": 7, "max_tokens": 24, "stop": ["a", "\n"]}
    assert {name: body[name] for name in expected} == expected


def test_last_question_is_asked_again(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    tab.send("second")
    data = {"index": 2, "value": "second"}
    tab.call_with("ask_again", data, None, None, "latest", set_values(temperature=1.0))
    assert "Hello there" in tab.respond().text
    assert list_questions(stub.bodies[-1]) == ["first", "second"]
    assert stub.bodies[-1]["temperature"] == 1
    assert [len(body["messages"]) for body in stub.bodies] == [1, 3, 3]


def test_edited_question_replaces_what_followed(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    tab.send("second")
    data = {"index": 0, "value": "changed", "previous_value": "first"}
    tab.call_with("ask_edited", data, None, None, "latest", set_values())
    tab.respond()
    tab.send("third")
    assert [list_questions(body) for body in stub.bodies[2:]] == [["changed"], ["changed", "third"]]


@pytest.mark.parametrize("place", [1, 7, -1, True, None, "0"])
def test_edit_of_no_question_changes_nothing(tab: Tab, stub: StubApi, place: Any) -> None:
    tab.send("first")
    data = {"index": place, "value": "changed", "previous_value": "first"}
    shown = tab.call_with("ask_edited", data, None, None, "latest", set_values())
    assert "first" in shown.text
    tab.respond()
    assert len(stub.bodies) == 1


def test_conversation_returns_if_edited_question_is_refused(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    data = {"index": 0, "value": "busy", "previous_value": "first"}
    tab.call_with("ask_edited", data, None, None, "latest", set_values())
    refused = tab.respond().text.rpartition("data: ")[2]
    assert "all places are taken" in refused.lower()
    assert '"busy"' in refused, "the changed question was lost"
    tab.send("second")
    assert list_questions(stub.bodies[-1]) == ["first", "second"]


def test_kept_conversation_is_continued_after_reload(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    kept = read_kept(tab.call("free_buttons", None))
    reloaded = Tab(tab.visitor)
    assert "first" in reloaded.call("open_chat", None, kept).text
    reloaded.send("second")
    assert list_questions(stub.bodies[-1]) == ["first", "second"]


def read_kept(result: Result) -> str:
    outputs = result.outputs
    return str(next(output for output in outputs if isinstance(output, str) and "turns" in output))


def test_question_without_answer_returns_to_field_after_reload(tab: Tab, stub: StubApi) -> None:
    kept = read_kept(tab.ask("hello"))
    reloaded = Tab(tab.visitor)
    opened = reloaded.call("open_chat", None, kept).text
    assert '"hello"' in opened
    assert '"role"' not in opened, "the question is shown as if it were being answered"
    reloaded.send("second")
    assert list_questions(stub.bodies[-1]) == ["second"]


def test_kept_conversation_of_other_model_is_not_shown(page_url: str, tab: Tab) -> None:
    tab.send("first")
    kept = read_kept(tab.call("free_buttons", None))
    visitor = PageCaller(page_url, {"model": "base"})
    opened = Tab(visitor).call("open_chat", None, kept).text
    visitor.close()
    assert '"value":"base"' in opened
    assert "first" not in opened


def add_checkpoint(stub: StubApi) -> str:
    stub.add_job("ftjob-run", "running", training={"task": "causal_lm"})
    name = "base-tuned-abc123-step-40"
    entry = {"id": "c", "step_number": 40, "fine_tuned_model_checkpoint": name}
    stub.runs.checkpoints["ftjob-run"] = [entry]
    return name


def test_checkpoint_in_url_is_announced_before_it_is_published(
    page_url: str, tab: Tab, stub: StubApi
) -> None:
    name = add_checkpoint(stub)
    stub.permissions = ["jobs.write"]
    visitor = PageCaller(page_url, {"model": name})
    checkpoint = Tab(visitor)
    opened = checkpoint.call("open_chat", None, "").text
    assert f'"value":"{name}"' in opened
    assert "step 40 of the run ftjob-run" in opened
    assert "The first question publishes it" in opened
    assert stub.bodies == []
    checkpoint.send("hello", name)
    assert stub.bodies[-1]["model"] == name
    stub.permissions = ["text.generate"]
    assert "your key may not publish it" in checkpoint.call("open_chat", None, "").text
    visitor.close()


def test_checkpoints_are_added_to_menu_on_demand(tab: Tab, stub: StubApi) -> None:
    name = add_checkpoint(stub)
    assert name not in tab.call("open_chat", None, "").text
    assert f"{name} (checkpoint)" in tab.call("add_checkpoints", None).text
    stub.models = [{"id": name, "object": "model"}]  # it was published
    refreshed = tab.call("refresh_chat", None, name).text
    assert name in refreshed
    assert "(checkpoint)" not in refreshed


def test_suggestions_are_questions_of_the_models_data(tab: Tab, stub: StubApi) -> None:
    row = {"messages": [{"role": "user", "content": "Who bakes bread?"}]}
    stub.add_job("ftjob-bread", "succeeded", training_file="file-bread", training={})
    stub.contents["file-bread"] = json.dumps(row)
    stub.models = [{"id": "baker", "run_id": "ftjob-bread"}]
    tab.call("open_chat", None, "")
    assert "Who bakes bread?" in tab.call("suggest", None, "baker").text
    stub.contents.clear()  # the key may not read files
    assert "bread" not in tab.call("suggest", None, "baker").text
    assert "workshop" not in tab.call("suggest", None, "base-tuned").text
    assert "When does the workshop open?" in tab.call("suggest", None, "base").text


def test_question_is_sent_to_model_selected_at_submit(tab: Tab, stub: StubApi) -> None:
    """A model selected between the click and the answer has no effect on the answer."""
    tab.ask("hello", "base")
    tab.call("refresh_chat", None, "latest")
    tab.respond()
    assert stub.bodies[-1]["model"] == "base"


@pytest.mark.parametrize("text", ["", "  \n", None])
def test_empty_message_changes_nothing(tab: Tab, stub: StubApi, text: str | None) -> None:
    asked, responded = tab.send(text)  # type: ignore[arg-type]
    assert asked.success
    assert responded.success
    assert stub.bodies == []
    outputs = asked.outputs
    send, stop = outputs[-2:]
    assert send == stop == {"__type__": "update"}, "the buttons were changed"
    assert "visible" not in str(outputs)


def test_refused_message_leaves_conversation_and_returns_to_field(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    long = "x" * (MAX_CHARACTERS + 1)
    _, refused = tab.send(long)
    assert "more tokens than the model" in refused.text
    assert f'"{long}"' in refused.text, "the typed text was lost"
    tab.send("second")
    assert list_questions(stub.bodies[-1]) == ["first", "second"]


def test_chat_history_from_browser_is_ignored(tab: Tab, stub: StubApi) -> None:
    tab.send("first")
    forged = [{"role": "assistant", "content": "I said so", "metadata": None, "options": None}]
    tab.call("ask", "second", forged, forged, "latest", set_values())
    tab.call("respond", forged)
    assert list_questions(stub.bodies[-1]) == ["first", "second"]
    assert "I said so" not in str(stub.bodies[-1])


def test_question_beyond_length_limit_is_refused(tab: Tab, stub: StubApi) -> None:
    asked = tab.ask("x" * 20_001, "latest")
    assert "The question has 20,001 characters; expected at most 20,000." in asked.text
    tab.respond()
    assert stub.bodies == []
