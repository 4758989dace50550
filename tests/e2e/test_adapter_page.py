"""The page in a real browser against the real application: an adapter, a chat, and a merge."""

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.conftest import Application
from tests.e2e.fine_tune_menus import enter
from tests.e2e.test_page import PATIENCE_MS, RUN_TIMEOUT_MS, browser, chat_with, context

pytestmark = [pytest.mark.e2e, pytest.mark.long]

__all__ = ["browser", "context"]


def test_preset_fine_tunes_adapter_that_chats_and_is_merged(
    context: BrowserContext, application: Application
) -> None:
    page = context.new_page()
    page.goto(f"{application.url}/ui/")
    expect(page.locator("#preview mark.ts-learned").nth(1)).to_be_visible(timeout=PATIENCE_MS)
    rate = page.locator("#setting-learning-rate input")
    expect(rate).to_have_value("0.001")
    enter(page, "setting-epochs", "2")
    page.get_by_role("radio", name="Adapter (LoRA)").check()
    expect(rate).to_have_value("0.005")
    expect(page.locator("#setting-epochs input")).to_have_value("2")
    page.get_by_role("radio", name="Balanced").check()
    expect(rate).to_have_value("0.001")
    page.get_by_role("radio", name="Adapter (LoRA)").check()
    expect(rate).to_have_value("0.005")
    enter(page, "run-name", "adapted")
    page.click("#start-button")

    page.wait_for_url("**/ui/runs?run=*")
    job_id = page.url.partition("run=")[2]
    expect(page.locator("#run-status")).to_have_text("Succeeded", timeout=RUN_TIMEOUT_MS)
    job = application.client.get(f"/fine_tuning/jobs/{job_id}", cast_to=dict[str, object])
    training = job["training"]
    assert isinstance(training, dict)
    assert (training["adapter"]["rank"], training["epochs"]) == (32, 2)
    assert training["adapter"]["export"] == "adapter"
    model = page.locator("#run-detail .ts-result code").inner_text()
    page.click("#chat-with-it")
    page.wait_for_url("**/ui/chat?model=*")
    chat_with(page, model)

    page.goto(f"{application.url}/ui/runs?run={job_id}")
    page.click("#merge-button")
    expect(page.locator("#merge-button")).to_have_text("Merging…")
    page.locator("#chat-with-merged").click(timeout=RUN_TIMEOUT_MS)
    page.wait_for_url("**/ui/chat?model=*")
    chat_with(page, f"{model}-merged")
    page.goto(f"{application.url}/ui/runs?run={job_id}")
    expect(page.locator("#chat-with-merged")).to_be_visible()
    expect(page.locator("#merge-button")).not_to_be_visible()
