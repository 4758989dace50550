"""The page "Cluster" in a real browser, against the real API with nodes that the test sets."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect
from starlette.responses import PlainTextResponse

from apps.http_api.cluster.ray_nodes import RayNode
from apps.ui.settings import UiSettings
from tests.apps.conftest import add_job
from tests.apps.http_api.cluster.test_node_metrics import TEXT
from tests.apps.stub_api import LocalServer
from tests.apps.ui.models_storage import ModelsStorage
from tests.apps.ui.page_server import serve_page
from tests.e2e.test_page import PATIENCE_MS, browser, open_context
from tests.tiny_model import build_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["browser"]


MAX_IDLE_BYTES_PER_S = 150_000 / 60
NUM_UPDATES = 3


class TwoNodes:
    """A cluster with this machine and another one."""

    def __init__(self, metrics_url: str) -> None:
        self._url = metrics_url

    def list_nodes(self) -> list[RayNode]:
        return [
            RayNode("aa" * 28, True, True, 2.0, 0.0, self._url),
            RayNode("bb" * 28, False, False, 8.0, 1.0, self._url),
        ]

    def count_free(self) -> Mapping[str, float]:
        return {"CPU": 8.5, "GPU": 1.0}

    def find_dashboard(self) -> str | None:
        return "http://127.0.0.1:8265"


@pytest.fixture
def storage(tmp_path: Path) -> ModelsStorage:
    storage = ModelsStorage(tmp_path, build_tiny_model(tmp_path / "tiny"))
    run = add_job(storage.layout, "tiny")
    run.update_record(waiting_for="number 1 in the queue")
    return storage


@pytest.fixture
def page(browser: Browser, storage: ModelsStorage) -> Iterator[Page]:
    context = open_context(browser)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    with LocalServer(PlainTextResponse(TEXT)) as metrics:
        nodes = TwoNodes(f"{metrics}/metrics")
        with storage.serve(nodes=nodes) as api, serve_page(UiSettings(api_url=api)) as url:
            page.goto(f"{url}/cluster")
            yield page
            context.close()
    assert faults == []


def test_cluster_shows_machines_models_and_queue(page: Page) -> None:
    nodes = page.locator(".ts-nodes article")
    expect(nodes).to_have_count(2)
    expect(nodes.first).to_contain_text("Processors")
    expect(nodes.nth(1)).to_contain_text("GPU 0, H100")
    expect(nodes.nth(1)).to_contain_text("69% of 8")
    expect(page.locator(".ts-cluster")).to_contain_text("1.5 of 10 reserved")
    expect(page.locator(".ts-cluster-table")).to_contain_text("2 × Generator")
    expect(page.locator(".ts-queue")).to_contain_text("number 1 in the queue")
    expect(page.get_by_role("link", name="Ray's dashboard")).to_have_attribute(
        "href", "http://127.0.0.1:8265"
    )
    expect(nodes.nth(1).locator(".ts-spark")).to_have_count(2, timeout=PATIENCE_MS)

    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(".ts-queue a").click()
    page.wait_for_url("**/runs?run=ftjob-000001")


def is_update(request: Request) -> bool:
    return "queue/join" in request.url


@pytest.mark.parametrize("path", ["cluster", "models"])
def test_idle_page_causes_little_traffic(page: Page, path: str) -> None:
    page.goto(page.url.replace("/cluster", f"/{path}"))
    expect(page.locator(f"#{path}-view h2")).to_be_visible()
    page.wait_for_event("requestfinished", is_update)  # Gradio and its parts have been loaded
    session = page.context.new_cdp_session(page)
    received: list[float] = []
    session.on("Network.dataReceived", lambda event: received.append(event["dataLength"]))
    session.send("Network.enable")
    began = time.monotonic()
    for _ in range(NUM_UPDATES):
        page.wait_for_event("requestfinished", is_update)
    observed_s = time.monotonic() - began
    assert sum(received) / observed_s <= MAX_IDLE_BYTES_PER_S, (sum(received), observed_s)
