"""All pages of the page against a stub of the HTTP API, with a run in each state."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, expect

from apps.ui.settings import UiSettings
from tests.apps.stub_api import STEPS, LocalServer, StubApi, build_stub
from tests.apps.stub_evaluations import add_sample_evaluations
from tests.apps.ui.page_server import serve_page
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


@contextmanager
def serve_stub_pages() -> Iterator[str]:
    """Serve the page against a stub with a run in each state, and yield its address."""
    stub = StubApi()
    progress = {"step": 2, "num_steps": STEPS, "loss": 3.0, "tokens_per_s": 10.0}
    stub.add_job("ftjob-1", "queued", waiting_for="number 2 in the queue")
    stub.add_job("ftjob-2", "failed", error={"message": "loss is nan"})
    stub.add_job("ftjob-3", "succeeded", fine_tuned_model="base-tuned", progress=progress)
    stub.add_job("ftjob-4", "paused", progress=progress)
    stub.add_job("ftjob-5", "cancelled")
    stub.add_job("ftjob-6", "running", progress={**progress, "remaining_s": 3.0})
    stub.add_event("ftjob-6", "Workers started")
    add_sample_evaluations(stub.evaluations_of_models)
    with LocalServer(build_stub(stub)) as stub.url, serve_page(UiSettings(api_url=stub.url)) as url:
        yield url


def open_page(browser: Browser, address: str, path: str, width: int = 1280, **options: Any) -> Page:
    """Open a page in a context of its own, and wait until it is complete."""
    context = browser.new_context(viewport={"width": width, "height": 800}, **options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"{address}{path}")
    ready = READY.get(path) or READY[path.partition("?")[0]]
    expect(page.locator(ready)).to_be_visible(timeout=PATIENCE_MS)
    return page
