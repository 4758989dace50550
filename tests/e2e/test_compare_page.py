"""The page "Compare" in a real browser, against a stub of the HTTP API: no cluster is started."""

import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.apps.stub_api import StubApi
from tests.e2e.test_page import PATIENCE_MS, browser, open_context
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["browser"]

ANSWERS = ".ts-compare-history .ts-answered"


@pytest.fixture
def runs(browser: Browser, stub: StubApi, address: str) -> Iterator[Page]:
    """The page of a finished run."""
    stub.add_job("ftjob-1", "succeeded", fine_tuned_model="base-tuned", training={})
    context = open_context(browser)
    page = context.new_page()
    page.goto(f"{address}/runs?run=ftjob-1")
    yield page
    context.close()


@pytest.fixture
def compare(runs: Page) -> Page:
    """Base against tuned, one click away from the run."""
    runs.click("#compare-with-base")
    runs.wait_for_url("**/compare?models=base,base-tuned")
    expect(runs.locator("#compare-column-2 .ts-compare-name")).to_have_text("base-tuned")
    return runs


def send(page: Page, text: str) -> None:
    page.fill("#compare-input textarea", text)
    page.click("#compare-send")


def column(page: Page, number: int) -> str:
    return page.locator(f"#compare-column-{number}").inner_text()


def test_finished_run_is_compared_with_its_base(compare: Page, stub: StubApi) -> None:
    expect(compare.locator("#compare-column-1 .ts-compare-name")).to_have_text("base")
    expect(compare.locator("#compare-column-3")).to_be_hidden()
    compare.get_by_text("When does the workshop open?").first.click()  # suggested
    expect(compare.locator(ANSWERS)).to_have_count(2, timeout=PATIENCE_MS)
    assert "tokens/s" in column(compare, 1)
    assert "tokens/s" in column(compare, 2)
    send(compare, "and in winter?")
    expect(compare.locator(ANSWERS)).to_have_count(4, timeout=PATIENCE_MS)
    assert sorted((body["model"], len(body["messages"])) for body in stub.bodies) == [
        ("base", 1),
        ("base", 3),
        ("base-tuned", 1),
        ("base-tuned", 3),
    ]


def test_failing_model_and_slow_model_do_not_stop_others(compare: Page, stub: StubApi) -> None:
    stub.models = [{"id": "third"}]
    compare.reload()
    compare.click("#compare-models input")
    compare.get_by_role("option", name="third").click()
    expect(compare.locator("#compare-column-3 .ts-compare-name")).to_have_text("third")
    compare.wait_for_url("**/compare?models=base%2Cbase-tuned%2Cthird")
    stub.busy_models = ["base"]
    stub.stream_holds["third"] = threading.Event()
    send(compare, "hello")
    expect(compare.locator("#compare-column-1 .ts-error")).to_contain_text("places are taken")
    expect(compare.locator("#compare-column-2 .ts-answered")).to_have_count(1)
    expect(compare.locator("#compare-column-3 .bot").first).to_contain_text("Hello")
    expect(compare.locator("#compare-column-3 .ts-answered")).to_have_count(0)
    compare.click("#compare-stop")
    expect(compare.locator("#compare-send")).to_be_visible()
    wait_until(lambda: stub.closed_streams == 2, 30, "the stream of the slow model is closed")


def test_columns_stack_on_a_phone(compare: Page) -> None:
    compare.set_viewport_size({"width": 390, "height": 844})
    first = compare.locator("#compare-column-1").bounding_box()
    second = compare.locator("#compare-column-2").bounding_box()
    assert first is not None
    assert second is not None
    assert second["y"] >= first["y"] + first["height"]
    assert first["x"] == second["x"]
    width = compare.evaluate("document.documentElement.scrollWidth")
    assert width <= 390


def test_model_is_removed_and_others_keep_their_history(compare: Page) -> None:
    send(compare, "hello")
    expect(compare.locator(ANSWERS)).to_have_count(2, timeout=PATIENCE_MS)
    compare.locator("#compare-models .token-remove").first.click()
    expect(compare.locator("#compare-column-1 .ts-compare-name")).to_have_text("base-tuned")
    expect(compare.locator("#compare-column-1 .ts-answered")).to_have_count(1)
    expect(compare.locator("#compare-note")).to_contain_text("Choose two to four models")
    compare.click("#compare-clear")
    expect(compare.locator(ANSWERS)).to_have_count(0)
