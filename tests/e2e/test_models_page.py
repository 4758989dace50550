"""The page "Models" in a real browser, against the real API without Ray."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.ui.settings import UiSettings
from tests.apps.ui.models_storage import ModelsStorage
from tests.apps.ui.page_server import serve_page
from tests.e2e.test_page import browser, open_context
from tests.model_chain import write_chain
from tests.tiny_model import build_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["browser"]


NUM_CHAINED = 120


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def storage(tmp_path: Path, small_model: Path) -> ModelsStorage:
    storage = ModelsStorage(tmp_path, small_model)
    storage.add_tuned("tiny-first-1")
    storage.add_tuned("tiny-second-2", base="tiny-first-1")
    storage.store.point_alias("latest", "tiny-first-1")
    storage.store.point_alias("latest", "tiny-second-2")
    return storage


@pytest.fixture
def page_url(storage: ModelsStorage) -> Iterator[str]:
    with storage.serve() as api_url, serve_page(UiSettings(api_url=api_url)) as url:
        yield url


@pytest.fixture
def page(browser: Browser, page_url: str) -> Iterator[Page]:
    context = open_context(browser)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{page_url}/models")
    expect(page.locator("#models-view h2")).to_have_text("Models")
    yield page
    context.close()
    assert faults == []


def open_model(page: Page, model_id: str) -> None:
    page.locator("table.ts-models").get_by_role("link", name=model_id, exact=True).click()
    expect(page.locator("#models-view h2")).to_have_text(model_id)


def test_model_is_opened_and_its_lineage_leads_to_other_models(page: Page) -> None:
    page.evaluate("window.isSameDocument = true")
    open_model(page, "tiny-second-2")
    assert page.url.endswith("/models?model=tiny-second-2")
    expect(page.locator("#models-view h2")).to_be_focused()
    steps = page.locator(".ts-lineage-steps > li")
    expect(steps).to_have_count(5)
    expect(steps.nth(1).get_by_role("link")).to_have_attribute("href", "./runs?run=ftjob-2")
    expect(steps.nth(4)).to_contain_text("latest")
    expect(page.locator("#model-card")).to_contain_text("tiny, fine-tuned")

    steps.nth(0).get_by_role("link", name="tiny-first-1").click()
    expect(page.locator("#models-view h2")).to_have_text("tiny-first-1")
    expect(page.locator(".ts-lineage figcaption")).to_contain_text("tiny-second-2")
    page.go_back()
    expect(page.locator("#models-view h2")).to_have_text("tiny-second-2")
    page.get_by_role("link", name="All models").click()
    expect(page.locator("#models-view h2")).to_have_text("Models")
    assert page.url.endswith("/models")
    assert page.evaluate("window.isSameDocument"), "the page was loaded again"

    page.goto(f"{page.url}?model=latest")
    expect(page.locator("#models-view h2")).to_have_text("tiny-second-2")
    page.goto(f"{page.url.partition('?')[0]}?model=gone")
    expect(page.locator("#models-notice")).to_contain_text("There is no model 'gone'")


def test_alias_is_promoted_rolled_back_and_removed(page: Page, storage: ModelsStorage) -> None:
    storage.add_event("latest", "tiny-second-2", "moved", "latest is served by tiny-second-2")
    open_model(page, "tiny-first-1")
    alias = page.get_by_label("Point an alias to this model")
    expect(alias).to_have_value("")
    alias.fill("latest")
    page.get_by_role("button", name="Promote").click()
    expect(page.locator("#models-notice")).to_contain_text("latest points to tiny-first-1 now")
    expect(alias).to_have_value("")
    assert storage.store.read_aliases()["latest"].model_id == "tiny-first-1"
    alias.fill("production")
    page.keyboard.press("Enter")
    expect(page.locator(".ts-aliases > li")).to_have_count(2)
    alias.fill("not a name")
    page.get_by_role("button", name="Promote").click()
    expect(page.locator("#promote-alias-problem")).to_contain_text("'not a name' is not a valid id")
    expect(alias).to_have_value("not a name")
    expect(alias).to_be_focused()
    expect(page.locator("#models-notice [role=alert]")).to_have_count(0)

    page.get_by_role("button", name="History of latest").click()
    history = page.locator(".ts-history")
    expect(history).to_contain_text("latest is served by tiny-second-2")
    expect(history).to_contain_text("Moved to tiny-first-1")

    latest = page.locator(".ts-aliases > li").filter(has_text="latest")
    latest.locator("summary", has_text="Roll back").click()
    expect(latest).to_contain_text("will point to tiny-second-2 again")
    latest.locator("button[data-action=roll_back]").click()
    expect(page.locator("#models-notice")).to_contain_text("latest points to tiny-second-2 again")
    expect(page.locator(".ts-aliases > li")).to_have_count(1)

    production = page.locator(".ts-aliases > li").filter(has_text="production")
    remove = production.locator("summary", has_text="Remove")
    remove.click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Remove alias")).to_be_hidden()
    expect(remove).to_be_focused()
    page.set_viewport_size({"width": 1280, "height": 400})
    remove.evaluate("button => button.scrollIntoView({ block: 'end' })")
    remove.click()
    expect(page.get_by_role("button", name="Remove alias")).to_be_in_viewport(ratio=1)
    page.get_by_role("button", name="Remove alias").click()
    expect(page.locator("#models-notice")).to_contain_text("production was removed")
    assert storage.store.read_aliases().keys() == {"latest"}


def test_model_is_verified_downloaded_and_deleted(
    page: Page, storage: ModelsStorage, tmp_path: Path
) -> None:
    open_model(page, "tiny-second-2")
    expect(page.get_by_role("button", name="Delete")).to_be_disabled()
    expect(page.locator("#delete-reason")).to_contain_text("latest")
    page.goto(f"{page.url.partition('?')[0]}?model=tiny-first-1")
    page.get_by_role("button", name="Verify files").click()
    expect(page.locator("#models-notice")).to_contain_text("as they were published")

    with page.expect_download() as started:
        page.get_by_role("link", name="Download .zip").click()
    archive = tmp_path / "model.zip"
    started.value.save_as(archive)
    assert started.value.suggested_filename == "tiny-first-1.zip"
    assert "tiny-first-1/model.safetensors" in zipfile.ZipFile(archive).namelist()

    weights = storage.layout.model("tiny-first-1") / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    page.get_by_role("button", name="Verify files").click()
    expect(page.locator("#models-notice [role=alert]")).to_contain_text("model.safetensors")
    expect(page.get_by_role("button", name="Verify files")).to_be_enabled()

    page.locator("summary", has_text="Delete").click()
    page.get_by_role("button", name="Delete model").click()
    expect(page.locator("#models-notice")).to_contain_text("tiny-first-1 was deleted")
    expect(page.locator("#models-view h2")).to_have_text("Models")
    assert page.url.endswith("/models")
    assert storage.store.find("tiny-first-1") is None


def test_120_models_are_filtered_and_sorted(
    browser: Browser, storage: ModelsStorage, page_url: str
) -> None:
    write_chain(storage.layout, "tiny", NUM_CHAINED)
    context = open_context(browser)
    page = context.new_page()
    page.goto(f"{page_url}/models")
    rows = page.locator(".ts-models tbody tr")
    expect(rows).to_have_count(NUM_CHAINED + 3)
    page.get_by_label("Filter").fill("second HANDBOOK")
    expect(page.locator(".ts-models tbody tr:visible")).to_have_count(1)
    expect(page.locator("#models-count")).to_have_text("1 of 123 models")
    open_model(page, "tiny-second-2")
    page.go_back()
    expect(page.get_by_label("Filter")).to_have_value("second HANDBOOK")
    expect(page.locator(".ts-models tbody tr:visible")).to_have_count(1)

    page.get_by_label("Filter").fill("")
    page.get_by_role("button", name="Model", exact=True).click()
    expect(rows.first).to_contain_text("tiny")
    expect(rows.last).to_contain_text("tuned-00119")
    page.get_by_role("button", name="Model", exact=True).click()
    expect(rows.first).to_contain_text("tuned-00119")
    expect(page.locator(".ts-models th").first).to_have_attribute("aria-sort", "descending")
    context.close()


def test_reader_sees_models_without_buttons(
    browser: Browser, storage: ModelsStorage, page_url: str
) -> None:
    key = KeyStore(storage.layout).create("reader", Role.READ).text
    context = browser.new_context(http_credentials={"username": "reader", "password": key})
    page = context.new_page()
    page.goto(f"{page_url}/models?model=tiny-first-1")
    expect(page.locator("#models-view")).to_contain_text("Your key may not download or verify")
    for name in ("Promote", "Verify files", "Delete", "Roll back"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("link", name="Download .zip")).to_have_count(0)
    assert context.request.get(f"{page_url}/models/tiny-first-1/archive").status == 403
    context.close()


def test_trainer_downloads_with_key(
    browser: Browser, storage: ModelsStorage, page_url: str
) -> None:
    key = KeyStore(storage.layout).create("trainer", Role.TRAIN).text
    context = browser.new_context(http_credentials={"username": "x", "password": key})
    page = context.new_page()
    page.goto(f"{page_url}/models?model=tiny-first-1")
    with page.expect_download() as started:
        page.get_by_role("link", name="Download .tar").click()
    assert Path(started.value.path()).stat().st_size > 100_000
    assert context.request.get(f"{page_url}/models/gone/archive").status == 404
    context.close()


def test_lineage_is_readable_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    open_model(page, "tiny-second-2")
    boxes = page.locator(".ts-box")
    widths = [box["width"] for one in boxes.all() if (box := one.bounding_box())]
    assert min(widths) > 250
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
