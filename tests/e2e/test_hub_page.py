"""Models of the hub on the page "Models" in a real browser, against the real API without Ray."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.hub.settings import HubSettings
from apps.ui.settings import UiSettings
from tests.apps.hub.conftest import TOKEN, hub
from tests.apps.hub.fake_hub import FakeHub
from tests.apps.ui.models_storage import ModelsStorage
from tests.apps.ui.page_server import serve_page
from tests.e2e.test_page import PATIENCE_MS, browser, open_context
from tests.tiny_model import build_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.browser]
__all__ = ["browser", "hub"]

PERMITTED = HubSettings(install=("org/*",), push=("me/*",))


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def storage(tmp_path: Path, small_model: Path) -> ModelsStorage:
    return ModelsStorage(tmp_path, small_model)


@pytest.fixture
def page(browser: Browser, storage: ModelsStorage, hub: FakeHub) -> Iterator[Page]:
    with (
        storage.serve(hub=PERMITTED) as api_url,
        serve_page(UiSettings(api_url=api_url)) as url,
    ):
        context = open_context(browser)
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{url}/models")
        expect(page.locator("#models-view h2")).to_have_text("Models")
        yield page
        context.close()
        assert faults == []


def test_model_is_installed_with_progress_and_is_a_base_then(
    page: Page, hub: FakeHub, small_model: Path
) -> None:
    release = threading.Event()
    hub.add("org/small", small_model, hold=release)
    source = page.get_by_label("Model on the hub")
    source.fill("other/x")
    page.get_by_label("Name here").fill("mine")
    page.get_by_role("button", name="Install", exact=True).click()
    problem = page.locator("#install-source-problem")
    expect(problem).to_contain_text("his server does not permit 'other/x'")
    expect(problem).to_contain_text("hub.install in deploy.yaml")
    expect(source).to_have_value("other/x")
    expect(source).to_be_focused()
    expect(source).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Name here")).to_have_value("mine")

    source.fill("org/small")
    page.get_by_label("Name here").fill("tiny")
    page.get_by_role("button", name="Install", exact=True).click()
    expect(page.locator("#install-id-problem")).to_contain_text("'tiny' is published already")
    expect(problem).to_have_count(0)
    page.get_by_label("Name here").fill("")
    page.get_by_role("button", name="Install", exact=True).click()
    expect(page.locator("#models-notice")).to_contain_text("org/small is being installed as small.")
    expect(source).to_have_value("")
    transfers = page.locator("#hub-transfers")
    expect(transfers).to_contain_text("Downloading", timeout=PATIENCE_MS)
    expect(transfers.locator("progress")).to_be_visible()

    source.fill("typed meanwhile")  # is kept while the progress is rendered again
    release.set()
    link = transfers.get_by_role("link", name="small", exact=True)
    expect(link).to_be_visible(timeout=PATIENCE_MS)
    expect(transfers).to_contain_text("Succeeded")
    expect(page.locator("table.ts-models")).to_contain_text("small")
    expect(source).to_have_value("typed meanwhile")
    link.click()
    expect(page.locator("#models-view h2")).to_have_text("small")
    page.goto(page.url.partition("/models")[0] + "/")
    entries = page.locator("#base-model option")
    expect(entries.filter(has_text="small (base)")).to_have_count(1, timeout=PATIENCE_MS)
    assert TOKEN not in page.content()


def test_download_is_cancelled_and_a_failure_has_its_reason(
    page: Page, hub: FakeHub, small_model: Path, storage: ModelsStorage
) -> None:
    release = threading.Event()
    hub.add("org/small", small_model, hold=release)
    page.get_by_label("Model on the hub").fill("org/small")
    page.keyboard.press("Enter")
    transfers = page.locator("#hub-transfers")
    expect(transfers).to_contain_text("Downloading", timeout=PATIENCE_MS)
    transfers.get_by_role("button", name="Cancel org/small").click()
    expect(page.locator("#models-notice")).to_contain_text("is being cancelled")
    expect(transfers).to_contain_text("Cancelled", timeout=PATIENCE_MS)
    release.set()
    page.get_by_label("Model on the hub").fill("org/gone")
    page.keyboard.press("Enter")
    expect(transfers).to_contain_text("no model 'org/gone' on the hub", timeout=PATIENCE_MS)
    assert [model.id for model in storage.store.list_models()] == ["tiny"]


def test_model_is_pushed(page: Page, hub: FakeHub) -> None:
    page.get_by_role("link", name="tiny", exact=True).click()
    expect(page.locator("#models-view h2")).to_have_text("tiny")
    page.get_by_label("Repository", exact=True).fill("you/x")
    page.get_by_label("Public repository").check()
    page.get_by_role("button", name="Push", exact=True).click()
    expect(page.locator("#push-repository-problem")).to_contain_text("does not permit 'you/x'")
    expect(page.get_by_label("Public repository")).to_be_checked()
    page.get_by_label("Repository", exact=True).fill("me/tuned")
    page.get_by_role("button", name="Push", exact=True).click()
    expect(page.locator("#models-notice")).to_contain_text("tiny is being pushed to me/tuned.")
    address = f"{hub.url}/me/tuned/commit/{'1' * 40}"
    link = page.locator("#hub-transfers").get_by_role("link", name=address)
    expect(link).to_be_visible(timeout=PATIENCE_MS)
    assert hub.created[0]["visibility"] != "private"
    assert "model.safetensors" in hub.files


def test_buttons_without_permission_have_the_reason_or_are_absent(
    browser: Browser, storage: ModelsStorage
) -> None:
    with storage.serve() as api_url, serve_page(UiSettings(api_url=api_url)) as url:
        context = open_context(browser)
        page = context.new_page()
        page.goto(f"{url}/models")
        expect(page.get_by_role("button", name="Install", exact=True)).to_be_disabled()
        expect(page.locator("#install-reason")).to_contain_text("hub.install")
        page.goto(f"{url}/models?model=tiny")
        expect(page.get_by_role("button", name="Push", exact=True)).to_be_disabled()
        expect(page.locator("#push-reason")).to_contain_text("hub.push")
        context.close()
    with storage.serve(hub=PERMITTED) as api_url, serve_page(UiSettings(api_url=api_url)) as url:
        key = KeyStore(storage.layout).create("trainer", Role.TRAIN).text
        context = browser.new_context(http_credentials={"username": "x", "password": key})
        page = context.new_page()
        page.goto(f"{url}/models?model=tiny")
        expect(page.locator("#models-view h2")).to_have_text("tiny", timeout=PATIENCE_MS)
        expect(page.get_by_role("button", name="Push", exact=True)).to_have_count(0)
        page.goto(f"{url}/models")
        expect(page.locator("#models-view h2")).to_have_text("Models", timeout=PATIENCE_MS)
        expect(page.get_by_role("button", name="Install", exact=True)).to_have_count(0)
        context.close()
