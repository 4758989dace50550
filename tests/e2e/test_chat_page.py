"""The page "Chat" in a real browser, against a stub of the HTTP API: no cluster is started."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from apps.ui.settings import UiSettings
from tests.apps.stub_api import MAX_CHARACTERS, LocalServer, StubApi, build_stub
from tests.apps.ui.page_server import serve_page
from tests.e2e.test_page import PATIENCE_MS, browser, open_context
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

__all__ = ["browser"]


@pytest.fixture
def stub() -> Iterator[StubApi]:
    stub = StubApi()
    with LocalServer(build_stub(stub)) as stub.url:
        yield stub


@pytest.fixture
def chat(browser: Browser, stub: StubApi) -> Iterator[Page]:
    context = open_context(browser)
    with serve_page(UiSettings(api_url=stub.url)) as url:
        page = context.new_page()
        page.goto(f"{url}/chat")
        expect(page.locator("#chat-model input")).to_have_value("latest → base-tuned")
        yield page
        context.close()


def send(page: Page, text: str) -> None:
    page.fill("#chat-input textarea", text)
    page.click("#chat-send")


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


def test_unknown_model_is_not_replaced(chat: Page, stub: StubApi) -> None:
    chat.goto(f"{chat.url}?model=gone")
    expect(chat.locator("#chat-note")).to_contain_text("There is no model 'gone'")
    expect(chat.locator("#chat-model input")).to_have_value("")
    send(chat, "hello")
    expect(chat.locator(".toast-wrap")).to_contain_text("Choose a model first")
    expect(chat.locator("#chat-input textarea")).to_have_value("hello")
    assert stub.bodies == []


def test_columns_setting_updates_preview(chat: Page, stub: StubApi) -> None:
    chat.goto(chat.url.replace("/chat", "/"))
    chat.click("#more-settings button")
    columns = chat.locator("#setting-columns textarea, #setting-columns input")
    columns.fill('{"prompt": "q"}')
    columns.blur()
    wait_until(lambda: {"columns": {"prompt": "q"}} in stub.previews, 60, "the preview is updated")
    columns.fill("{'prompt': 'q'}")
    columns.blur()
    expect(chat.locator("#preview .ts-error")).to_contain_text("Columns is not JSON")
