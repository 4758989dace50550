"""The page "Evaluate" in a real browser, against a stub of the HTTP API: no cluster is started."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.apps.stub_api import StubApi
from tests.apps.stub_evaluations import StubEvaluations, add_sample_evaluations, make_row
from tests.e2e.test_page import browser, open_context

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["browser"]

MAX_BYTES_PER_MINUTE = 150_000
NUM_MEASURED = 3
REFRESHES_PER_MINUTE = 30


@pytest.fixture
def stub(stub: StubApi) -> StubApi:
    """Return a stub with three evaluations."""
    add_sample_evaluations(stub.evaluations_of_models)
    return stub


@pytest.fixture
def address(address: str) -> str:
    return f"{address}/evaluate"


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A tab; fails on an error of a script or in the console."""
    context = open_context(browser)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: errors.append(message.text) if message.type == "error" else None,
    )
    yield page
    context.close()
    assert errors == []


@pytest.fixture
def evaluations(stub: StubApi, page: Page) -> StubEvaluations:
    return stub.evaluations_of_models


def count_bytes(request: Request) -> int:
    sizes = request.sizes()
    headers = sizes["requestHeadersSize"] + sizes["responseHeadersSize"]
    return headers + sizes["requestBodySize"] + sizes["responseBodySize"]


def open_view(page: Page, address: str, query: str = "") -> None:
    page.goto(f"{address}{query}")
    expect(page.locator(".ts-evaluate-page")).to_have_attribute("aria-busy", "false")


def test_evaluation_is_started_watched_and_deleted(
    page: Page, evaluations: StubEvaluations, address: str
) -> None:
    evaluations.evaluations.clear()
    open_view(page, address)
    expect(page.locator(".ts-view-list .ts-empty")).to_contain_text("choose a model and rows")
    assert page.locator("#field-models").input_value() == "latest"
    assert page.locator("#field-second_model").input_value() == ""

    page.select_option("#field-second_model", "latest")
    page.fill("#field-max_rows", "many")
    page.click("#start-evaluation")
    expect(page.locator("#problem-max_rows")).to_contain_text("got 'many'")
    expect(page.locator("#problem-second_model")).to_contain_text("the same")
    expect(page.locator("#field-second_model")).to_be_focused()
    page.select_option("#field-second_model", "base")
    expect(page.locator("#problem-second_model")).to_be_hidden()
    page.fill("#field-max_rows", "12")
    evaluations.fault = (400, "the file has no answers", "file")
    page.keyboard.press("Enter")
    expect(page.locator("#problem-rows")).to_have_text("The file has no answers")
    evaluations.fault = None
    page.click("#start-evaluation")

    expect(page.locator("#evaluation-status")).to_have_text("Waiting")
    assert page.url.endswith("?evaluation=eval-new1")
    assert evaluations.bodies[-1] == {
        "models": ["latest", "base"],
        "file": "file-handbook",
        "max_rows": 12,
        "max_tokens": 256,
    }
    evaluation = evaluations.evaluations["eval-new1"]
    evaluations.rows["eval-new1"] = [make_row(1, "Who?", "Ines", base="Ines")]
    evaluation |= {"status": "running", "num_rows": 12, "num_done": 3}
    expect(page.locator("#evaluation-progress")).to_have_attribute("value", "0.2500")
    expect(page.locator(".ts-eval-row")).to_have_count(1)
    page.click("#cancel-evaluation")
    expect(page.locator("#evaluation-status")).to_have_text("Cancelled")

    page.click("#delete-evaluation")
    page.click("#delete-evaluation-dialog [data-close]")
    assert "eval-new1" in evaluations.evaluations
    page.click("#delete-evaluation")
    page.click("#confirm-delete")
    expect(page.locator(".ts-view-list .ts-empty")).to_be_visible()
    assert page.url.endswith("/evaluate")
    assert evaluations.evaluations == {}


def test_evaluation_is_opened_read_and_repeated(
    page: Page, evaluations: StubEvaluations, address: str
) -> None:
    for row in evaluations.rows["eval-1"][:12]:
        row["answers"] = row["answers"][:1] * 2
    open_view(page, address)
    expect(page.locator(".ts-eval-table tbody tr")).to_have_count(3)
    page.locator("tr[data-evaluation=eval-1] a").click()
    expect(page.locator(".ts-metric-card")).to_have_count(2)
    expect(page.locator("[data-model=base-tuned] .ts-better")).to_have_count(4)
    expect(page).to_have_title("latest → base-tuned and base · Tuneserve")

    rows = page.locator(".ts-eval-row h4")
    expect(rows).to_have_count(10)
    page.click("#next-rows")
    expect(rows.first).to_have_text("Row 11 · question")
    expect(page.locator("#rows-title")).to_be_focused()
    page.click("#previous-rows")
    expect(rows.first).to_have_text("Row 1 · question")
    expect(page.locator("#previous-rows")).to_be_hidden()
    page.select_option("#row-filter", "different")
    expect(rows.first).to_have_text("Row 13 · question")
    marks = page.locator(".ts-eval-row >> nth=0 >> mark")
    assert marks.all_inner_texts() == ["shop", "ten", "except in winter"]
    with page.expect_download() as download:
        page.click("#download-rows")
    assert download.value.suggested_filename == "eval-1-different.csv"
    assert len(download.value.path().read_text().splitlines()) == 1 + 13
    page.reload()
    expect(rows.first).to_have_text("Row 13 · question")

    page.click("#evaluate-again")
    expect(page.locator("#field-second_model")).to_have_value("base")
    expect(page.locator("#field-rows")).to_have_value("file:file-handbook")
    page.go_back()
    expect(rows.first).to_have_text("Row 13 · question")


def test_address_fills_the_form_and_open_page_is_cheap(
    page: Page, evaluations: StubEvaluations, stub: StubApi, address: str
) -> None:
    stub.add_job("ftjob-1", "succeeded", fine_tuned_model="base-tuned", validation_file="file-v")
    page.goto(f"{address.removesuffix('evaluate')}runs?run=ftjob-1")
    page.click("#evaluate-it")
    expect(page.locator("#field-models")).to_have_value("base-tuned")
    expect(page.locator("#field-second_model")).to_have_value("base")
    expect(page.locator("#field-rows")).to_have_value("job:ftjob-1")

    open_view(page, address, "?model=base")
    expect(page.locator("#field-models")).to_have_value("base")
    expect(page.locator(".ts-eval-table tbody tr")).to_have_count(2)
    page.locator("[data-go=all]").click()
    expect(page.locator(".ts-eval-table tbody tr")).to_have_count(3)

    page.locator("tr[data-evaluation=eval-2] a").click()
    expect(page.locator("#evaluation-status")).to_have_text("Running")
    requests: list[Request] = []
    page.on("requestfinished", lambda request: requests.append(request))
    for number in range(NUM_MEASURED):
        evaluations.evaluations["eval-2"]["num_done"] = 13 + number
        share = f"{(13 + number) / 45:.4f}"
        expect(page.locator("#evaluation-progress")).to_have_attribute("value", share)
    num_bytes = sum(map(count_bytes, requests))
    assert 0 < num_bytes / NUM_MEASURED * REFRESHES_PER_MINUTE < MAX_BYTES_PER_MINUTE


def test_page_fits_a_phone(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for query, part in (("", ".ts-eval-table tbody tr"), ("?evaluation=eval-1", ".ts-eval-row")):
        open_view(page, address, query)
        expect(page.locator(part).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    answers = page.locator(".ts-eval-row >> nth=0 >> .ts-eval-answer")
    first, second = answers.nth(0).bounding_box(), answers.nth(1).bounding_box()
    assert first is not None
    assert second is not None
    assert second["y"] >= first["y"] + first["height"]
