"""The page "Chat" in a real browser, against a stub of the HTTP API: no cluster is started."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.apps.stub_api import MAX_CHARACTERS, StubApi
from tests.e2e.test_page import PATIENCE_MS, browser, open_context
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["browser"]


@pytest.fixture
def chat(browser: Browser, address: str) -> Iterator[Page]:
    context = open_context(browser)
    page = context.new_page()
    page.goto(f"{address}/chat")
    expect(page.locator("#chat-model input")).to_have_value("latest → base-tuned")
    yield page
    context.close()


def send(page: Page, text: str) -> None:
    page.fill("#chat-input textarea", text)
    page.click("#chat-send")


@pytest.mark.parametrize("kept", ["", "base"])
def test_document_has_the_model_menu(browser: Browser, address: str, kept: str) -> None:
    page = open_context(browser).new_page()
    page.goto(f"{address}/nonsense")
    if kept:
        text = '{"asked_model": "base", "turns": []}'
        page.evaluate("text => sessionStorage.setItem('tuneserve-chat', text)", text)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/queue/join*", hold)
    page.goto(f"{address}/chat")
    menu = page.locator("#chat-model input")
    shown = "base (base)" if kept else "latest → base-tuned"
    expect(menu).to_have_value(shown)
    wait_until(lambda: page.evaluate("document.title") and held, 30, "the page is being opened")
    expect(menu).to_be_disabled()  # until the server has opened the page
    for route in held:
        route.continue_()
    page.unroute("**/queue/join*")
    expect(menu).to_be_enabled()
    expect(menu).to_have_value(shown)
    page.context.close()


def test_chat_handles_empty_and_long_messages_and_model_changes(chat: Page, stub: StubApi) -> None:
    notes = chat.locator("#chat-history .ts-answered")
    send(chat, "   ")
    expect(chat.locator("#chat-send")).to_have_text("Send")
    send(chat, "hello")
    expect(notes).to_have_count(1, timeout=PATIENCE_MS)

    long = "x" * (MAX_CHARACTERS + 1)
    send(chat, long)
    expect(chat.locator("#chat-answered-by .ts-error")).to_contain_text("more tokens")
    expect(chat.locator("#chat-input textarea")).to_have_value(long)
    send(chat, "hello again")
    expect(notes).to_have_count(2, timeout=PATIENCE_MS)

    stub.latest = "newer"
    send(chat, "and now?")
    expect(chat.locator("#chat-model input")).to_have_value("latest → newer")
    expect(chat.locator("#chat-note")).to_contain_text("this is a new conversation")
    expect(notes).to_have_count(1, timeout=PATIENCE_MS)

    chat.click("#chat-model input")
    chat.get_by_role("option", name="base (base)").click()
    expect(notes).to_have_count(0)
    send(chat, "who are you?")
    expect(notes).to_have_count(1, timeout=PATIENCE_MS)
    assert stub.bodies[-1]["model"] == "base"
    assert len(stub.bodies[-1]["messages"]) == 1


@pytest.mark.parametrize("first", ["   ", "hello"])
def test_question_is_asked_once_if_send_is_pressed_again_at_once(
    chat: Page, stub: StubApi, first: str
) -> None:
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        data = (route.request.post_data_json or {}).get("data") or [None]
        if data[0] != first or held:
            route.continue_()
        else:
            held.append(route)

    def is_held() -> bool:
        chat.wait_for_timeout(50)  # lets Playwright call `hold_first`
        return bool(held)

    chat.route("**/queue/join*", hold_first)
    send(chat, first)
    wait_until(is_held, 20, "Send is pressed once")
    send(chat, "hello")
    held[0].continue_()
    expect(chat.locator("#chat-history .ts-answered")).to_have_count(1, timeout=PATIENCE_MS)
    expect(chat.locator("#chat-input textarea")).to_have_value("")
    expect(chat.locator("#chat-send")).to_be_visible()
    expect(chat.locator(".toast-body")).to_have_count(0)
    assert list_contents(stub) == ["hello"]


def test_question_that_is_sent_before_the_menu_is_filled_is_answered(
    browser: Browser, stub: StubApi, address: str
) -> None:
    models_are_read = threading.Event()
    stub.holds = [models_are_read, models_are_read]  # of the document, and of the page
    context = open_context(browser)
    page = context.new_page()
    page.goto(f"{address}/chat")
    send(page, "hello")
    expect(page.locator("#chat-model input")).to_have_value("")
    wait_until(lambda: not stub.holds, 20, "the page reads the models")
    models_are_read.set()
    expect(page.locator("#chat-history .ts-answered")).to_have_count(1, timeout=PATIENCE_MS)
    expect(page.locator("#chat-input textarea")).to_have_value("")
    expect(page.locator("#chat-model input")).to_have_value("latest → base-tuned")
    assert list_contents(stub) == ["hello"]
    context.close()


def test_unknown_model_is_not_replaced(chat: Page, stub: StubApi) -> None:
    chat.goto(f"{chat.url}?model=gone")
    expect(chat.locator("#chat-note")).to_contain_text("There is no model 'gone'")
    expect(chat.locator("#chat-model input")).to_have_value("")
    send(chat, "hello")
    expect(chat.locator(".toast-wrap")).to_contain_text("Choose a model first")
    expect(chat.locator("#chat-input textarea")).to_have_value("hello")
    assert stub.bodies == []


NOTES = "#chat-history .ts-answered:not(.ts-cut)"


def ask(page: Page, text: str, num_answers: int) -> None:
    send(page, text)
    expect(page.locator(NOTES)).to_have_count(num_answers, timeout=PATIENCE_MS)
    expect(page.locator("#chat-send")).to_be_visible()


def list_contents(stub: StubApi) -> list[str]:
    return [message["content"] for message in stub.bodies[-1]["messages"]]


def test_answer_names_model_run_and_speed_as_links(chat: Page, stub: StubApi) -> None:
    stub.origins["base-tuned"] = {"x-run-id": "ftjob-1", "x-checkpoint": "step-40"}
    ask(chat, "hello", 1)
    note = chat.locator(NOTES)
    expect(note).to_contain_text("tokens/s")
    links = note.locator("a")
    assert [link.get_attribute("href") for link in links.all()] == [
        "./models?model=base-tuned",
        "./runs?run=ftjob-1",
    ]
    expect(links.nth(1)).to_have_text("ftjob-1")
    expect(note).to_contain_text("run ftjob-1, step 40")


def test_history_and_settings_survive_reload(chat: Page, stub: StubApi) -> None:
    chat.fill("#chat-system textarea", "Be brief")
    chat.fill("#chat-seed input", "7")
    chat.locator("#chat-seed input").blur()
    ask(chat, "first", 1)
    chat.reload()
    expect(chat.locator(NOTES)).to_have_count(1, timeout=PATIENCE_MS)
    expect(chat.locator("#chat-system textarea")).to_have_value("Be brief")
    expect(chat.locator("#chat-seed input")).to_have_value("7")
    ask(chat, "second", 2)
    assert [text for text in list_contents(stub) if "Hello" not in text] == [
        "Be brief",
        "first",
        "second",
    ]
    assert stub.bodies[-1]["seed"] == 7
    chat.click("#chat-clear")
    expect(chat.locator(NOTES)).to_have_count(0)
    chat.click("#reset-settings")
    expect(chat.locator("#chat-system textarea")).to_have_value("")
    chat.reload()
    expect(chat.locator("#chat-model input")).to_have_value("latest → base-tuned")
    expect(chat.locator(NOTES)).to_have_count(0)


def test_questions_are_asked_on_their_own(chat: Page, stub: StubApi) -> None:
    chat.fill("#chat-system textarea", "Be brief")
    chat.uncheck("#chat-earlier input")
    ask(chat, "first", 1)
    chat.reload()
    expect(chat.locator(NOTES)).to_have_count(1, timeout=PATIENCE_MS)
    expect(chat.locator("#chat-earlier input")).not_to_be_checked()
    expect(chat.locator("#chat-settings summary")).to_have_text("Settings 2 changed")
    ask(chat, "second", 2)
    assert list_contents(stub) == ["Be brief", "second"]
    chat.click("#chat-code summary")
    request = chat.locator("#chat-code textarea")
    expect(request).to_have_value(re.compile('"second"'))
    assert '"first"' not in request.input_value()
    chat.click("#reset-settings")
    expect(chat.locator("#chat-earlier input")).to_be_checked()
    expect(chat.locator("#chat-settings summary")).to_have_text("Settings")
    expect(request).to_have_value(re.compile('"first"'))
    ask(chat, "third", 3)
    sent = list_contents(stub)
    assert (sent[0], sent[-1], len(sent)) == ("first", "third", 5), "without a system prompt"


def test_settings_of_another_version_are_ignored(chat: Page) -> None:
    kept = '{"system": "Be brief", "earlier": "no", "seed": "x"}'
    chat.evaluate("kept => localStorage.setItem('tuneserve-chat-settings', kept)", kept)
    chat.reload()
    expect(chat.locator("#chat-system textarea")).to_have_value("Be brief")
    expect(chat.locator("#chat-earlier input")).to_be_checked()
    expect(chat.locator("#chat-seed input")).to_have_value("")
    expect(chat.locator("#chat-settings summary")).to_have_text("Settings 1 changed")


def test_invalid_setting_is_named_at_its_field(chat: Page, stub: StubApi) -> None:
    chat.fill("#chat-max-tokens input", "0")
    chat.locator("#chat-max-tokens input").blur()
    field = chat.locator("#chat-max-tokens")
    expect(field).to_contain_text("Maximum number of tokens is 0: enter a number from 1")
    send(chat, "hello")
    expect(chat.locator("#chat-input textarea")).to_have_value("hello")
    assert stub.bodies == []
    chat.fill("#chat-max-tokens input", "5")
    chat.locator("#chat-max-tokens input").blur()
    expect(field).not_to_contain_text("enter a number")
    chat.click("#chat-send")
    expect(chat.locator(NOTES)).to_have_count(1, timeout=PATIENCE_MS)


def test_cut_answer_is_marked_and_continued(chat: Page, stub: StubApi) -> None:
    chat.fill("#chat-max-tokens input", "1")
    chat.locator("#chat-max-tokens input").blur()
    ask(chat, "hello", 1)
    expect(chat.locator("#chat-history .ts-cut")).to_contain_text("Cut at the maximum number")
    chat.click("#chat-continue")
    expect(chat.locator("#chat-history .bot").first).to_contain_text("Hello there")
    expect(chat.locator("#chat-history .ts-cut")).to_have_count(1)
    chat.fill("#chat-max-tokens input", "50")
    chat.locator("#chat-max-tokens input").blur()
    chat.click("#chat-continue")
    expect(chat.locator("#chat-history .ts-cut")).to_have_count(0)
    expect(chat.locator("#chat-continue")).to_be_hidden()
    assert list_contents(stub) == ["hello", "Hello there "]


def test_answer_is_stopped_and_asked_again(chat: Page, stub: StubApi) -> None:
    held = stub.stream_holds["base-tuned"] = threading.Event()
    send(chat, "hello")
    expect(chat.locator("#chat-history .bot").first).to_contain_text("Hello")
    chat.click("#chat-stop")
    expect(chat.locator("#chat-send")).to_be_visible()
    held.set()
    expect(chat.locator(NOTES)).to_have_count(0)
    chat.get_by_role("button", name="Retry").click()
    expect(chat.locator(NOTES)).to_have_count(1, timeout=PATIENCE_MS)
    assert [list(body["messages"]) for body in stub.bodies][-1] == [
        {"role": "user", "content": "hello"}
    ]


def test_question_is_edited_and_sent_again(chat: Page, stub: StubApi) -> None:
    ask(chat, "first", 1)
    ask(chat, "second", 2)
    chat.get_by_role("button", name="Edit").first.click()
    chat.locator("#chat-history textarea").fill("changed")
    chat.get_by_role("button", name="Submit").first.click()
    expect(chat.locator(NOTES)).to_have_count(1, timeout=PATIENCE_MS)
    expect(chat.locator("#chat-history .user").first).to_contain_text("changed")
    assert list_contents(stub) == ["changed"]


def test_request_is_shown_for_curl_and_python(chat: Page, stub: StubApi) -> None:
    ask(chat, "it's 'quoted'", 1)
    chat.click("#chat-code summary")
    code = chat.locator("#chat-code-text textarea")
    expect(code).to_have_value(re.compile("^curl --fail-with-body"))
    chat.get_by_label("Python").check()
    expect(code).to_have_value(re.compile("^from openai import OpenAI"))
    text = code.input_value().replace(chat.url.partition("/ui/")[0], stub.url)
    run = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120 * PATIENCE
    )
    assert "Hello there" in run.stdout, run.stderr
    sent = [{k: v for k, v in body.items() if k[:6] != "stream"} for body in stub.bodies]
    assert sent[1] == {**sent[0], "model": "base-tuned"}


def test_answer_is_copied(chat: Page) -> None:
    chat.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(chat, "hello", 1)
    chat.get_by_role("button", name="Copy message").last.click()
    copied = "navigator.clipboard.readText()"
    wait_until(lambda: chat.evaluate(copied).startswith("Hello there"), 20, "the answer is copied")


def test_checkpoint_is_offered_on_demand_and_announced(chat: Page, stub: StubApi) -> None:
    stub.permissions = ["jobs.write"]
    stub.add_job("ftjob-1", "running", training={})
    entry = {"id": "c", "step_number": 40, "fine_tuned_model_checkpoint": "base-tuned-1-step-40"}
    stub.runs.checkpoints["ftjob-1"] = [entry]
    chat.click("#chat-checkpoints")
    expect(chat.locator(".toast-wrap")).to_contain_text("1 checkpoint")
    chat.click("#chat-model input")
    chat.get_by_role("option", name="base-tuned-1-step-40 (checkpoint)").click()
    expect(chat.locator("#chat-note")).to_contain_text("The first question publishes it")
    assert stub.bodies == []
    chat.wait_for_url("**/chat?model=base-tuned-1-step-40")
    ask(chat, "hello", 1)
    assert stub.bodies[-1]["model"] == "base-tuned-1-step-40"


def test_questions_of_the_models_data_are_suggested(chat: Page, stub: StubApi) -> None:
    """Not those of the bundled handbook, which other models did not learn."""
    expect(chat.locator("#chat-history")).not_to_contain_text("workshop")
    stub.add_job("ftjob-1", "succeeded", training_file="file-bread", training={})
    stub.contents["file-bread"] = '{"prompt": "Who bakes bread?", "completion": "Ada."}'
    stub.models = [{"id": "baker", "run_id": "ftjob-1"}]
    chat.goto(f"{chat.url}?model=baker")
    chat.get_by_text("Who bakes bread?").click()
    expect(chat.locator(NOTES)).to_have_count(1, timeout=PATIENCE_MS)
    assert list_contents(stub) == ["Who bakes bread?"]
    chat.click("#chat-model input")
    chat.get_by_role("option", name="base (base)").click()
    expect(chat.locator("#chat-history")).to_contain_text("When does the workshop open?")
    expect(chat.locator("#chat-note")).to_contain_text("knows almost nothing")


def test_columns_setting_updates_preview(chat: Page, stub: StubApi) -> None:
    chat.goto(chat.url.replace("/chat", "/"))
    chat.click("#more-settings summary")
    columns = chat.locator("#setting-columns textarea")
    columns.fill('{"prompt": "q"}')
    columns.blur()
    wait_until(lambda: {"columns": {"prompt": "q"}} in stub.previews, 60, "the preview is updated")
    columns.fill("{'prompt': 'q'}")
    columns.blur()
    expect(chat.locator("#preview .ts-error")).to_contain_text("Columns is not JSON")
