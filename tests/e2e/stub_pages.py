"""What each page of `sample_address` shows once it is complete."""

from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.e2e.test_page import PATIENCE_MS

READY = {
    "/": "#preview mark.ts-learned >> nth=0",
    "/runs": "#run-list tbody tr >> nth=0",
    "/compare": "#compare-send",
    "/evaluate": ".ts-eval-table tbody tr >> nth=0",
    "/evaluate?evaluation=eval-1": ".ts-eval-row >> nth=0",
    "/models": "#models-view h2",
    "/cluster": "#cluster-view h2",
    "/chat": "#chat-model input",
    "/classify": "#classify-button",
    "/api": "details.ts-call >> nth=0",
    "/nonsense": "main a >> nth=0",
}
"""By path, what is visible when a page is complete."""


def open_page(browser: Browser, address: str, path: str, width: int = 1280, **options: Any) -> Page:
    """Open a page in a context of its own, and wait until it is complete."""
    context = browser.new_context(viewport={"width": width, "height": 800}, **options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"{address}{path}")
    ready = READY.get(path) or READY[path.partition("?")[0]]
    expect(page.locator(ready)).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".ts-first-view")).to_have_count(0)  # Gradio has started
    return page
