"""The page in a real browser against the real application: learn from preferences."""

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.conftest import ROOT, Application
from tests.e2e.fine_tune_menus import enter, find_chosen, select
from tests.e2e.test_page import PATIENCE_MS, RUN_TIMEOUT_MS, browser, context

pytestmark = [pytest.mark.e2e, pytest.mark.long]

__all__ = ["browser", "context"]


def test_page_previews_pairs_and_learns_from_them(
    context: BrowserContext, application: Application, tmp_path: Path
) -> None:
    rows = (ROOT / "examples" / "preference" / "train.jsonl").read_text().splitlines()
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(rows[:40]))
    page = context.new_page()
    page.goto(f"{application.url}/ui/")
    expect(page.locator("#preview mark.ts-learned").nth(1)).to_be_visible(timeout=PATIENCE_MS)
    page.set_input_files("input[type=file]", pairs)
    expect(find_chosen(page, "task")).to_have_text("Prefer better answers", timeout=PATIENCE_MS)
    expect(page.locator("#preview")).to_contain_text("Row 1, not preferred", timeout=PATIENCE_MS)
    enter(page, "setting-epochs", "1")
    page.click("#more-settings summary")
    enter(page, "setting-validation-fraction", "0.2")
    select(page, "loss", "ipo")
    enter(page, "run-name", "friendly")
    page.click("#start-button")

    page.wait_for_url("**/ui/runs?run=*")
    expect(page.locator("#run-status")).to_have_text("Succeeded", timeout=RUN_TIMEOUT_MS)
    expect(page.locator("#run-evaluation")).to_contain_text("Reward accuracy")
    expect(page.locator("#chat-with-it")).to_be_visible()
