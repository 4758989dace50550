"""The page in a real browser against the real application: fine-tune, watch, chat."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.e2e.conftest import Application
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.e2e

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE_MS = 60_000 * PATIENCE
RUN_TIMEOUT_MS = 400_000 * PATIENCE

# Records every intermediate text of the last answer.
WATCH_ANSWER_JS = """() => {
  window.seenAnswers = new Set();
  const look = () => {
    const answers = document.querySelectorAll("#chat-history .bot .md");
    if (answers.length) window.seenAnswers.add(answers[answers.length - 1].innerText.trim());
  };
  new MutationObserver(look).observe(document.querySelector("#chat-history"),
    {childList: true, subtree: true, characterData: true});
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser, application: Application) -> Iterator[BrowserContext]:
    """The browser context of one visitor; fails if it requests any other site."""
    context = open_context(browser)
    requested_urls: list[str] = []
    context.on("request", lambda request: requested_urls.append(request.url))
    yield context
    context.close()
    own_urls = (application.url, "data:", "blob:")
    assert [url for url in requested_urls if not url.startswith(own_urls)] == []


def open_context(browser: Browser) -> BrowserContext:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    return context


def count_points(page: Page) -> int:
    """Return the number of steps in the loss curve."""
    figure = page.locator("#loss-plot figure")
    return int(figure.get_attribute("data-points") or 0) if figure.count() else 0


def test_page_fine_tunes_shows_run_and_chats(
    context: BrowserContext, browser: Browser, application: Application
) -> None:
    page = context.new_page()
    page.goto(f"{application.url}/ui/")
    expect(page.locator("#preview mark.ts-learned").nth(1)).to_be_visible(timeout=PATIENCE_MS)
    page.fill("#setting-epochs input", "2")
    page.fill("#run-name input", "visitor")
    page.click("#start-button")

    page.wait_for_url("**/ui/runs?run=*")
    address = page.url
    check_loss_curve_grows(page)
    page.reload()
    assert page.url == address
    expect(page.locator("#run-detail h2")).to_have_text("visitor", timeout=PATIENCE_MS)
    check_other_browser_shows_run(browser, address)

    expect(page.locator("#run-status")).to_have_text("Succeeded", timeout=RUN_TIMEOUT_MS)
    model = page.locator("#run-detail .ts-result code").inner_text()
    page.click("#chat-with-it")
    page.wait_for_url("**/ui/chat?model=*")
    chat_with(page, model)


def check_loss_curve_grows(page: Page) -> None:
    wait_until(lambda: count_points(page), 240, "the loss curve has points")
    before = count_points(page)
    wait_until(lambda: count_points(page) > before, 120, "the loss curve has more points")


def check_other_browser_shows_run(browser: Browser, address: str) -> None:
    """Check that another browser, without any state, lists and shows the active run."""
    other = open_context(browser)
    page = other.new_page()
    page.goto(address.partition("?")[0])
    page.locator("#run-list").get_by_role("link", name="visitor").first.click()
    expect(page.locator("#run-detail h2")).to_have_text("visitor", timeout=PATIENCE_MS)
    wait_until(lambda: count_points(page), 60, "the other browser shows the curve")
    assert page.url == address
    other.close()


def chat_with(page: Page, model: str) -> None:
    name = re.compile(rf"{re.escape(model)}( \(.*\))?")  # the menu tells what an adapter is for
    expect(page.locator("#chat-model input")).to_have_value(name, timeout=PATIENCE_MS)
    page.evaluate(WATCH_ANSWER_JS)
    page.fill("#chat-input textarea", "When does the workshop open?")
    page.click("#chat-send")
    note = page.locator("#chat-history .ts-answered")
    expect(note).to_have_text(re.compile(rf"Answered by {re.escape(model)} · \d+ tokens"))
    shown = [text for text in page.evaluate("[...window.seenAnswers]") if text]
    final = max(shown, key=len)
    assert len(shown) > 2, shown
    assert all(final.startswith(text) for text in shown)


def test_page_shows_error_of_api(context: BrowserContext, application: Application) -> None:
    page = context.new_page()
    page.goto(f"{application.url}/ui/")
    page.fill("#setting-learning-rate input", "0")
    problem = page.locator("#setting-learning-rate .ts-field-error")
    expect(problem).to_contain_text("Learning rate is 0", timeout=PATIENCE_MS)
    expect(page.locator("#start-button")).to_be_disabled()


def test_page_shows_line_of_invalid_row(
    context: BrowserContext, application: Application, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jsonl"
    good = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "A"}]}
    bad.write_text(json.dumps(good) + "\n<img src=x onerror=alert(1)>\n")
    page = context.new_page()
    page.goto(f"{application.url}/ui/")
    expect(page.locator("#preview mark.ts-learned").nth(1)).to_be_visible(timeout=PATIENCE_MS)
    page.set_input_files("input[type=file]", bad)
    expect(page.locator("#preview .ts-error")).to_contain_text("line 2", timeout=PATIENCE_MS)
    assert page.locator("#preview img").count() == 0


@pytest.mark.long
def test_buttons_pause_resume_and_cancel_run(
    context: BrowserContext, application: Application
) -> None:
    page = context.new_page()
    page.goto(f"{application.url}/ui/")
    page.fill("#setting-epochs input", "50")
    page.click("#start-button")
    page.wait_for_url("**/ui/runs?run=*")
    status = page.locator("#run-status")
    page.click("#pause-button")
    expect(status).to_have_text("Paused", timeout=RUN_TIMEOUT_MS)
    expect(page.locator("#pause-button")).to_be_hidden()
    page.click("#resume-button")
    expect(status).to_have_text(re.compile("Waiting|Running"), timeout=PATIENCE_MS)
    page.click("#cancel-button")
    expect(status).to_have_text("Cancelled", timeout=PATIENCE_MS)
    for name in ("pause", "cancel"):
        expect(page.locator(f"#{name}-button")).to_be_hidden(timeout=PATIENCE_MS)
    page.click("#resume-button")
    expect(status).to_have_text(re.compile("Waiting|Running"), timeout=PATIENCE_MS)
    page.click("#cancel-button")
    expect(status).to_have_text("Cancelled", timeout=PATIENCE_MS)
