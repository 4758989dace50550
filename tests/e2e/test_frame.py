"""What all pages share, in a browser: theme, header, times, keyboard, 404."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from tests.apps.stub_api import STEPS, StubApi
from tests.e2e.stub_pages import READY, open_page
from tests.e2e.test_page import PATIENCE_MS, browser
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["browser"]

PAGES = [path for path in READY if path != "/nonsense"]
THEME_JS = """() => {
  const parts = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number);
  return [
    ...[document.documentElement, document.body].map(part => part.classList.contains("dark")),
    getComputedStyle(document.documentElement).colorScheme === "dark",
    (parts[0] + parts[1] + parts[2]) / 3 < 100,
  ];
}"""
OUTLINE_JS = """() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2;
}"""
CUT_OFF_JS = """() => [...document.querySelectorAll("label")].filter(label => {
  if (!label.querySelector("input[type=checkbox]")) return false;
  const text = (label.querySelector("span") ?? label).getBoundingClientRect();
  for (let box = label; box && box.localName !== "main"; box = box.parentElement) {
    const edge = box.getBoundingClientRect();
    if (getComputedStyle(box).overflow !== "visible" &&
        (text.right > edge.right + 1 || text.bottom > edge.bottom + 1)) return true;
  }
  return [...label.querySelectorAll("span")].some(span => span.scrollWidth > span.clientWidth + 1);
}).map(label => label.innerText)"""


LOADED_JS = """() => performance.getEntriesByType("resource")
  .map(entry => new URL(entry.name).pathname).filter(path => path.includes("/assets/"))"""
IS_MOVED_JS = "() => document.querySelector('gradio-app').contains(window.firstFrame)"


@pytest.fixture
def address(sample_address: str) -> str:
    return sample_address


def check_theme(page: Page, *, is_dark: bool) -> None:
    """Check the theme of all parts; a changed system's theme arrives with the next frame."""
    wait_until(lambda: page.evaluate(THEME_JS)[0] == is_dark, 20, "the theme is the expected one")
    assert page.evaluate(THEME_JS) == [is_dark] * 4


def test_theme_follows_system_until_visitor_chooses_one(browser: Browser, address: str) -> None:
    page = open_page(browser, address, "/runs", color_scheme="dark")
    check_theme(page, is_dark=True)
    page.emulate_media(color_scheme="light")
    check_theme(page, is_dark=False)
    page.get_by_role("button", name="Dark theme").click()
    check_theme(page, is_dark=True)
    page.reload()
    check_theme(page, is_dark=True)  # before Gradio has started
    expect(page.locator(READY["/runs"])).to_be_visible(timeout=PATIENCE_MS)
    check_theme(page, is_dark=True)  # and after
    page.emulate_media(color_scheme="dark")
    page.get_by_role("button", name="Light theme").click()
    for path in ("/chat", "/api", "/nonsense"):
        page.goto(f"{address}{path}")
        expect(page.locator(READY[path])).to_be_visible(timeout=PATIENCE_MS)
        check_theme(page, is_dark=False)
        expect(page.get_by_role("button", name="Light theme")).to_have_attribute(
            "aria-pressed", "true"
        )
    page.get_by_role("button", name="Automatic theme").click()
    check_theme(page, is_dark=True)
    page.context.close()


def test_theme_of_address_is_kept_until_another_is_chosen(browser: Browser, address: str) -> None:
    page = open_page(browser, address, "/chat?__theme=dark")
    check_theme(page, is_dark=True)
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.locator(READY["/runs"])).to_be_visible(timeout=PATIENCE_MS)
    check_theme(page, is_dark=True)
    page.goto(f"{address}/chat?__theme=dark&model=base")
    page.get_by_role("button", name="Light theme").click()
    assert page.url.endswith("/chat?model=base")
    page.reload()
    check_theme(page, is_dark=False)
    page.context.close()


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_header_names_pages_and_fits(browser: Browser, address: str, width: int) -> None:
    page = open_page(browser, address, "/runs", width)
    links = page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link")
    for link in links.all():
        expect(link).to_be_visible()
        assert link.locator("svg").count() == 1
    expect(page.locator(".ts-header [aria-current=page]")).to_have_text("Runs")
    box = page.locator(".ts-header").bounding_box()
    assert box is not None
    assert box["height"] < 120
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.title() == "Runs · Tuneserve"
    page.context.close()


def test_times_are_in_zone_and_language_of_browser(browser: Browser, address: str) -> None:
    page = open_page(browser, address, "/runs", locale="de-DE", timezone_id="Asia/Kathmandu")
    page.goto(f"{address}/runs?run=ftjob-6")
    expect(page.locator("time[data-moment=clock]").first).to_be_visible(timeout=PATIENCE_MS)
    expected = page.evaluate(
        """() => [...document.querySelectorAll("time:not([data-moment=relative])")].map(time => {
          const options = time.dataset.moment === "clock"
            ? {hour: "2-digit", minute: "2-digit", second: "2-digit"}
            : {day: "numeric", month: "short", hour: "2-digit", minute: "2-digit"};
          const moment = new Date(time.dateTime);
          if (!time.dataset.moment.startsWith("c")
              && moment.getFullYear() !== new Date().getFullYear()) options.year = "numeric";
          return moment.toLocaleString("de-DE", {...options, timeZone: "Asia/Kathmandu"});
        })"""
    )
    assert len(expected) >= 2
    shown = page.locator("time:not([data-moment=relative])")
    assert shown.all_inner_texts() == expected
    page.context.close()


def test_times_that_change_later_are_rewritten_once(browser: Browser, address: str) -> None:
    page = open_page(browser, address, "/runs", timezone_id="Asia/Tokyo")
    page.evaluate(
        """() => {
          window.changes = 0;
          new MutationObserver((records) => { window.changes += records.length; }).observe(
            document.querySelector("h1"), {childList: true, characterData: true, subtree: true});
          const time = document.createElement("time");
          time.dateTime = "2020-01-01T00:00:00Z";
          time.dataset.moment = "clock";
          time.textContent = "00:00:00 UTC";
          document.querySelector("h1").append(time);
        }"""
    )
    shown = page.locator("h1 time")
    expect(shown).to_contain_text("9:00:00")
    page.evaluate("document.querySelector('h1 time').firstChild.data = 'as Gradio changes it'")
    expect(shown).to_contain_text("9:00:00")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")
    assert page.evaluate("window.changes") <= 4
    page.context.close()


def test_keyboard_reaches_content(browser: Browser, address: str) -> None:
    page = open_page(browser, address, "/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.context.close()


def test_tab_closes_dropdowns(browser: Browser, address: str) -> None:
    page = open_page(browser, address, "/classify")
    menu = page.locator("#classify-model input")
    menu.focus()
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Tab")
    expect(menu).not_to_be_focused()
    expect(menu).to_have_attribute("aria-expanded", "false")
    expect(page.locator("[role=option]")).to_have_count(0)
    page.context.close()


def test_focus_is_visible_on_each_kind_of_field(browser: Browser, address: str) -> None:
    page = open_page(browser, address, "/")
    for selector in (
        *("#setting-epochs input", "#base-model select", "#run-name input"),
        *("#start-button", "#more-settings summary", "#preset input", ".ts-header nav a >> nth=1"),
    ):
        page.keyboard.press("Shift")  # the browser's sign that the keyboard is used
        page.locator(selector).first.focus()
        assert page.evaluate(OUTLINE_JS), selector
    page.context.close()


@pytest.mark.parametrize("width", [390, 768, 1280, 1440])
def test_labels_of_check_boxes_are_not_cut_off(browser: Browser, address: str, width: int) -> None:
    page = open_page(browser, address, "/", width)
    expect(page.locator("#start-button")).to_be_enabled(timeout=PATIENCE_MS)
    page.locator("#more-settings summary").click()
    boxes = page.locator("#more-settings").get_by_role("checkbox")
    expect(boxes).to_have_count(2)
    for box in boxes.all():
        expect(box).to_be_visible()
    assert page.evaluate(CUT_OFF_JS) == []
    page.context.close()


def test_status_for_screen_readers_is_a_word(browser: Browser, address: str) -> None:
    page = open_page(browser, address, "/classify")
    expect(page.locator("#classify-model input")).to_have_value("topics")
    page.evaluate(
        """() => {
          window.announced = [];
          for (const status of document.querySelectorAll("[role=status].sr-only"))
            new MutationObserver(() => { window.announced.push(status.textContent.trim()); })
              .observe(status, {childList: true, characterData: true, subtree: true});
        }"""
    )
    page.fill("#classify-text textarea", "A text")
    page.click("#classify-button")
    wait_until(lambda: "Done" in page.evaluate("window.announced"), 30, "the end is announced")
    assert not [text for text in page.evaluate("window.announced") if "common." in text]
    page.context.close()


@pytest.mark.parametrize(
    ("locale", "message"),
    [
        ("en", "Connection to the server was lost"),
        ("de", "Die Verbindung zum Server ist unterbrochen"),
    ],
)
def test_page_is_loaded_again_after_a_lost_connection(
    browser: Browser, address: str, locale: str, message: str
) -> None:
    page = open_page(browser, address, "/chat", locale=locale)
    expect(page.locator("#chat-model input")).not_to_have_value("")

    def refuse(route: Route) -> None:
        route.abort()

    for path in ("queue/join", "app_id"):
        page.route(f"**/gradio_api/{path}*", refuse)
    page.evaluate("window.isOld = true")
    page.fill("#chat-input textarea", "Hello")
    page.keyboard.press("Enter")
    expect(page.locator(".toast-wrap")).to_contain_text(message)
    for path in ("queue/join", "app_id"):
        page.unroute(f"**/gradio_api/{path}*", refuse)
    page.wait_for_function("!window.isOld")
    expect(page.locator("#chat-model input")).not_to_have_value("", timeout=PATIENCE_MS)
    page.context.close()


@pytest.mark.parametrize("path", PAGES)
def test_page_has_one_heading_and_no_error_in_console(
    browser: Browser, address: str, path: str
) -> None:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    messages: list[str] = []
    page.on(
        "console",
        lambda message: messages.append(message.text) if message.type == "error" else None,
    )
    page.on("response", lambda response: messages.append(str(response.status)))
    page.goto(f"{address}{path}")
    expect(page.locator(READY[path])).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator("h1")).to_have_count(1)
    expect(page.locator("main")).to_have_count(1)
    assert page.locator("html").get_attribute("lang") == "en"
    assert [text for text in messages if text not in ("200", "304")] == []
    context.close()


def test_api_page_shows_example_with_address(browser: Browser, address: str) -> None:
    page = open_page(browser, address, "/api")
    origin = address.removesuffix("/ui")
    page.locator(".ts-contents a").first.click()
    assert page.url.startswith(f"{address}/api#")
    call = page.locator("details.ts-call", has_text="/v1/fine_tuning/jobs").first
    call.locator("summary").click()
    expect(call.locator("pre")).to_contain_text(f'curl "{origin}/v1/fine_tuning/jobs')
    page.context.close()


@pytest.mark.parametrize("path", [path for path in PAGES if path != "/api"])
def test_document_names_all_files_that_its_scripts_load(
    browser: Browser, address: str, path: str
) -> None:
    page = open_page(browser, address, path)
    loaded = {name.rpartition("/")[2] for name in page.evaluate(LOADED_JS)}
    document = page.request.get(f"{address}{path}").text()
    named = set(re.findall(r'href="(?:\./)?assets/([^"]+)"', document))
    assert loaded == named
    page.context.close()


@contextmanager
def open_held(
    browser: Browser, url: str, *, keeps_state: bool = True
) -> Iterator[tuple[Page, Callable[[], None]]]:
    """Open a page whose scripts of Gradio come once the yielded function is called.

    Without `keeps_state`, the browser cannot move an element with its state.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    if not keeps_state:
        page.add_init_script("delete Element.prototype.moveBefore")
    held: list[Route] = []
    is_held = True

    def handle(route: Route) -> None:
        if is_held:
            held.append(route)
        else:
            route.continue_()

    def release() -> None:
        nonlocal is_held
        page.evaluate("window.firstFrame = document.querySelector('.ts-runs-page')")
        is_held = False
        for route in held:
            route.continue_()
        expect(page.locator(".ts-first-view")).to_have_count(0)

    page.route("**/assets/*.js", handle)
    page.goto(url, wait_until="commit")
    yield page, release
    context.close()
    assert errors == []


@pytest.mark.parametrize("keeps_state", [True, False])
def test_page_is_shown_and_used_before_gradio_has_started(
    browser: Browser, stub: StubApi, page_of_slot: str, keeps_state: bool
) -> None:
    for number in range(30):
        stub.add_job(f"ftjob-{number}", "succeeded", user_provided_suffix=f"name-{number}")
    url = f"{page_of_slot}/runs"
    with open_held(browser, url, keeps_state=keeps_state) as (page, release):
        rows = page.locator("#run-list tbody tr")
        expect(rows).not_to_have_count(0)
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        expect(page.get_by_role("main")).to_have_count(1)
        assert page.locator("gradio-app *").count() == 0
        before = rows.last.bounding_box()
        page.fill("#run-search", "name-17")
        page.evaluate("window.scrollTo(0, 120)")
        release()
        assert page.evaluate(IS_MOVED_JS)
        expect(page.locator("#run-search")).to_have_value("name-17")
        expect(page.locator("#run-search")).to_be_focused()
        expect(rows).to_have_count(1)
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        expect(page.get_by_role("main")).to_have_attribute("id", "content")
        page.fill("#run-search", "")
        expect(rows).not_to_have_count(1)
        page.evaluate("window.scrollTo(0, 0)")
        assert rows.last.bounding_box() == before


def test_action_before_gradio_has_started_is_sent_once(
    browser: Browser, stub: StubApi, page_of_slot: str
) -> None:
    stub.add_job("ftjob-1", "running", progress={"step": 2, "num_steps": STEPS, "loss": 3.0})
    stub.runs.logs["ftjob-1"] = b"line\n" * 200
    actions: list[str] = []

    def note(request: Request) -> None:
        if "/queue/join" in request.url and request.post_data_json:
            actions.append(request.post_data_json["event_data"].get("action", ""))

    with open_held(browser, f"{page_of_slot}/runs?run=ftjob-1") as (page, release):
        page.on("request", note)
        expect(page.locator("#run-status")).to_have_text("Running")
        page.click("#run-log summary")
        button = page.locator("#pause-button")
        button.click()
        expect(button).to_be_disabled()
        expect(button).to_have_text("Pausing…")
        assert stub.jobs["ftjob-1"]["status"] == "running"
        release()
        expect(page.locator("#run-status")).to_have_text("Paused")
        expect(page.locator("#run-log")).to_have_attribute("open", "")
        expect(page.locator("#log-text")).to_contain_text("line")
        assert page.evaluate(IS_MOVED_JS)
    assert [action for action in actions if action] == ["pause"]


def test_page_without_its_frame_in_the_document_is_drawn_by_gradio(
    browser: Browser, address: str
) -> None:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()

    def remove_frame(route: Route) -> None:
        html = re.sub(
            r'<div class="ts-first-view.*?</script>', "", route.fetch().text(), flags=re.DOTALL
        )
        route.fulfill(body=html, content_type="text/html")

    for path in ("/runs", "/models"):
        page.route(f"{address}{path}", remove_frame)
        page.goto(f"{address}{path}")
        expect(page.locator(READY[path])).to_be_visible()
        expect(page.locator("h1")).to_have_count(1)
    context.close()
