"""The page in a real browser against the real application: fine-tune a classifier, and try it."""

import csv
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from serving.store.model_store import ModelStore
from storage.layout import open_storage
from tests.e2e.conftest import Application
from tests.e2e.fine_tune_menus import choose, enter, find_chosen, select
from tests.e2e.test_page import PATIENCE_MS, RUN_TIMEOUT_MS, browser, context
from tests.tiny_encoder import build_tiny_encoder

pytestmark = [pytest.mark.e2e, pytest.mark.long]

__all__ = ["browser", "context"]

WORDS = {"good": "positive", "bad": "negative"}


def write_rows(path: Path) -> Path:
    """Write labelled texts with columns of other names than ours, as a spreadsheet has them."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("review", "category"))
        for number in range(8):
            for word, label in WORDS.items():
                writer.writerow((f"the film was {'very ' * number}{word}", label))
    return path


def test_page_fine_tunes_classifier_shows_confusion_and_classifies(
    context: BrowserContext, application: Application, tmp_path: Path
) -> None:
    store = ModelStore(open_storage(application.storage))
    store.install(build_tiny_encoder(tmp_path / "encoder"), "page-encoder")
    page = context.new_page()
    page.goto(f"{application.url}/ui/")
    expect(page.locator("#preview mark.ts-learned").nth(1)).to_be_visible(timeout=PATIENCE_MS)
    page.set_input_files("input[type=file]", write_rows(tmp_path / "reviews.csv"))
    expect(find_chosen(page, "task")).to_have_text("Classify texts", timeout=PATIENCE_MS)
    choose(page, "base-model", "page-encoder (base)")
    expect(find_chosen(page, "task")).to_have_text("Classify texts", timeout=PATIENCE_MS)
    expect(page.locator("#preview")).to_contain_text("the film was good", timeout=PATIENCE_MS)
    # The fields are built again with the settings of the chosen model.
    expect(page.locator("#setting-learning-rate input")).to_have_value("0.0001")
    enter(page, "setting-epochs", "8")
    enter(page, "setting-learning-rate", "0.005")
    enter(page, "setting-num-workers", "1")
    page.click("#more-settings summary")
    enter(page, "setting-validation-fraction", "0.25")
    enter(page, "setting-micro-batch-size", "2")
    select(page, "strategy", "ddp")
    enter(page, "run-name", "reviews")
    page.click("#start-button")

    page.wait_for_url("**/ui/runs?run=*")
    expect(page.locator("#run-status")).to_have_text("Succeeded", timeout=RUN_TIMEOUT_MS)
    evaluation = page.locator("#run-evaluation")
    expect(evaluation).to_contain_text("Accuracy")
    cells = evaluation.locator("td.ts-right-class, td.ts-wrong-class").all_inner_texts()
    assert sum(map(int, cells)) == 4  # a quarter of 16 rows
    expect(evaluation.locator("tbody th")).to_have_text(["negative", "positive"])

    model = page.locator("#run-detail .ts-result code").inner_text()
    page.click("#classify-with-it")
    expect(page.locator("#classify-model input")).to_have_value(model, timeout=PATIENCE_MS)
    page.fill("#classify-text textarea", "the film was very bad")
    page.click("#classify-button")
    labels = page.locator("#classify-result .ts-labels li")
    expect(labels).to_have_count(2, timeout=PATIENCE_MS)
    expect(labels.first).to_contain_text("negative")
