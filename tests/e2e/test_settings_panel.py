"""The settings of the page "Fine-tune" in a real browser, against a stub of the HTTP API."""

import re
import threading
from collections.abc import Iterator

import pytest
import yaml
from playwright.sync_api import Browser, Page, expect

from tests.apps.stub_api import StubApi
from tests.e2e.fine_tune_menus import choose, enter, find_chosen, select
from tests.e2e.test_page import PATIENCE_MS, browser, open_context
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["browser"]

RATE = "#setting-learning-rate"


@pytest.fixture
def stub(stub: StubApi) -> StubApi:
    """Return a stub with a file of labels and a finished run."""
    labelled = {**stub.files[0], "id": "file-labels", "filename": "labels.csv"}
    stub.files.append({**labelled, "check": {"task": "sequence_classification"}})
    training = {"task": "causal_lm", "epochs": 9, "precision": "fp32"}
    stub.add_job("ftjob-old", "succeeded", training=training, user_provided_suffix="former")
    return stub


@pytest.fixture
def panel(browser: Browser, address: str) -> Iterator[Page]:
    context = open_context(browser)
    page = context.new_page()
    page.set_viewport_size({"width": 1280, "height": 720})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{address}/")
    expect_ready(page)
    yield page
    context.close()
    assert errors == []


def expect_ready(page: Page) -> None:
    expect(page.locator("#start-button")).to_be_enabled(timeout=PATIENCE_MS)
    expect(page.locator("#estimate")).to_contain_text("steps", timeout=PATIENCE_MS)


def list_shown(page: Page) -> list[str]:
    shown = page.evaluate(
        """() => [...document.querySelectorAll("#setting-form .ts-setting")]
             .filter((field) => field.checkVisibility()).map((field) => field.id)"""
    )
    return [str(one) for one in shown]


def expect_shown(page: Page, *names: str) -> None:
    expected = [f"setting-{name}" for name in names]
    wait_until(lambda: list_shown(page) == expected, 30, f"only {names} are shown")


def test_settings_are_searched_and_filtered_to_changes(panel: Page) -> None:
    expect_shown(panel, "epochs", "learning-rate")  # the others are closed
    panel.fill("#settings-search", "memory offload")
    expect_shown(panel, "offload-optimizer")
    expect(panel.locator("#settings-found")).to_have_text("1 setting")
    panel.fill("#settings-search", "no such thing")
    expect(panel.locator("#settings-found")).to_have_text("No setting matches.")
    panel.fill("#settings-search", "")
    expect(panel.locator("#group-data h2")).to_have_text("Data")
    assert len(list_shown(panel)) > 6

    panel.check("#settings-changed-only")
    expect(panel.locator("#settings-found")).to_have_text("All settings have their defaults.")
    panel.uncheck("#settings-changed-only")
    enter(panel, "setting-epochs", "5")
    panel.locator("#setting-offload-optimizer input").check()
    panel.check("#settings-changed-only")
    expect_shown(panel, "epochs", "offload-optimizer")
    expect(panel.locator("#settings-num-changed")).to_have_text("(2)")


@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_no_check_box_is_cut_off(panel: Page, width: int) -> None:
    panel.set_viewport_size({"width": width, "height": 900})
    panel.click("#more-settings summary")
    field = panel.locator("#setting-offload-optimizer")
    expect(field).to_be_visible()
    cut = field.evaluate(
        """(field) => [field, ...field.querySelectorAll("*")].filter((part) =>
             part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 0
             && getComputedStyle(part).display !== "inline").map((part) => part.className)"""
    )
    assert cut == []
    box = field.bounding_box()
    assert box
    assert box["width"] >= 150


def test_problem_is_at_its_field_and_disables_start(panel: Page, stub: StubApi) -> None:
    enter(panel, "setting-learning-rate", "0")
    problem = panel.locator(f"{RATE} .ts-field-error")
    expect(problem).to_have_text("Learning rate is 0: it should be greater than 0.")
    expect(panel.locator(f"{RATE} input")).to_have_attribute("aria-invalid", "true")
    expect(panel.locator("#start-button")).to_be_disabled()
    expect(panel.locator("#start-reason")).to_have_text(
        "Learning rate is 0: it should be greater than 0."
    )
    expect(panel.get_by_test_id("toast-body")).to_have_count(0)
    enter(panel, "run-name", "two words")
    expect(panel.locator("#run-name .ts-field-error")).to_contain_text("letters, digits")
    enter(panel, "run-name", "words")
    enter(panel, "setting-learning-rate", "0.01")
    expect_ready(panel)
    expect(panel.locator(".ts-field-error")).to_have_count(0)
    panel.click("#start-button")
    panel.wait_for_url("**/runs?run=ftjob-new")
    assert stub.bodies[-1]["training"] == {"learning_rate": 0.01}
    assert stub.bodies[-1]["suffix"] == "words"


def test_problem_of_closed_setting_is_shown_once_it_is_opened(panel: Page) -> None:
    panel.click("#settings-export summary")
    panel.locator("#import-text textarea").fill('columns: "{"')
    panel.click("#import-button")
    expect(panel.locator("#start-reason")).to_contain_text("Columns is not JSON")
    expect(panel.locator("#settings-num-changed")).to_have_text("(1)")
    panel.click("#start-reason")
    expect(panel.locator("#setting-columns .ts-field-error")).to_be_visible()
    expect(panel.locator("#setting-columns textarea")).to_be_focused()


def test_reason_leads_to_the_field_of_the_problem(panel: Page) -> None:
    panel.click("#more-settings summary")
    columns = panel.locator("#setting-columns textarea")
    columns.fill("{'prompt': 'q'}")
    expect(panel.locator("#setting-columns .ts-field-error")).to_contain_text("is not JSON")
    panel.fill("#settings-search", "epochs")
    expect(panel.locator("#setting-columns")).to_be_hidden()
    panel.click("#start-reason")
    expect(columns).to_be_focused()


def test_estimate_follows_what_is_entered(panel: Page, stub: StubApi) -> None:
    estimate = panel.locator("#estimate")
    expect(estimate).to_contain_text("120 steps")
    expect(estimate).to_contain_text("2 × 880 MB of 23.5 GB memory")
    enter(panel, "setting-epochs", "7")
    expect(estimate).to_contain_text("280 steps")
    expect(estimate).to_contain_text("about 2 min 20 s of training")
    assert stub.estimates[-1]["training"] == {"epochs": 7}
    assert stub.bodies == []


def test_typing_is_followed_by_one_estimate(panel: Page, stub: StubApi) -> None:
    num_before = len(stub.estimates)
    panel.locator("#run-name input").press_sequentially("a-longer-name", delay=5)
    wait_until(lambda: stub.estimates[-1].get("suffix") == "a-longer-name", 30, "it is checked")
    assert len(stub.estimates) - num_before <= 3


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_start_is_in_the_window_and_hides_nothing(panel: Page, width: int, height: int) -> None:
    panel.set_viewport_size({"width": width, "height": height})
    expect(panel.locator("#start-button")).to_be_in_viewport(ratio=1)
    expect(panel.locator("#run-name")).to_be_in_viewport(ratio=1)
    expect(panel.locator("#estimate")).to_be_in_viewport(ratio=1)
    panel.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    last = panel.locator("#settings-export").bounding_box()
    bar = panel.locator("#start-bar").bounding_box()
    assert last
    assert bar
    assert last["y"] + last["height"] <= bar["y"]
    assert panel.evaluate("document.documentElement.scrollWidth") <= width


def test_data_of_another_task_switch_the_settings_and_fields_accept_text(
    panel: Page, stub: StubApi
) -> None:
    enter(panel, "setting-epochs", "5")
    choose(panel, "data-file", "labels.csv")
    expect(find_chosen(panel, "task")).to_have_text("Classify texts", timeout=PATIENCE_MS)
    panel.click("#more-settings summary")
    enter(panel, "setting-labels", '["hot", "cold"]')
    enter(panel, "setting-warmup-ratio", "0.2")
    select(panel, "problem-type", "regression")
    expect(panel.locator("#setting-epochs input")).to_have_value("5")
    expect_ready(panel)
    panel.click("#start-button")
    panel.wait_for_url("**/runs?run=ftjob-new")
    assert stub.bodies[-1]["training_file"] == "file-labels"
    assert stub.bodies[-1]["training"] == {
        "task": "sequence_classification",
        "epochs": 5,
        "warmup_ratio": 0.2,
        "task_settings": {"labels": ["hot", "cold"], "problem_type": "regression"},
    }


def test_form_that_is_replaced_keeps_what_is_typed_and_the_focus(
    panel: Page, stub: StubApi
) -> None:
    panel.click("#more-settings summary")
    columns = panel.locator("#setting-columns textarea")
    columns.fill("{}")
    enter(panel, "setting-epochs", "4")
    release = threading.Event()
    stub.default_holds = [release]
    panel.get_by_role("radio", name="Quick look").check()
    wait_until(lambda: not stub.default_holds, 60, "the settings are asked for")
    enter(panel, "setting-epochs", "5")
    select(panel, "precision", "fp32")
    panel.locator("#setting-offload-optimizer input").check()
    columns.fill('{"prompt": "que"}')
    columns.evaluate("(field) => field.setSelectionRange(15, 15)")
    release.set()
    expect(panel.locator("#preset-note")).to_contain_text("the data and the settings work.")
    expect(columns).to_be_focused()
    panel.keyboard.type("ry")
    expect(columns).to_have_value('{"prompt": "query"}')
    expect(panel.locator("#setting-epochs input")).to_have_value("5")
    expect(panel.locator("#setting-precision select")).to_have_value('"fp32"')
    expect(panel.locator("#setting-offload-optimizer input")).to_be_checked()
    expect(columns).to_be_visible()
    expect_ready(panel)


def test_settings_are_entered_by_keyboard(panel: Page) -> None:
    panel.locator("#settings-search").focus()
    for name in ("settings-changed-only", "setting-epochs-input", "setting-learning-rate-input"):
        panel.keyboard.press("Tab")
        assert panel.evaluate("document.activeElement.id") == name
    panel.keyboard.press("Tab")
    panel.keyboard.press("Enter")
    panel.keyboard.press("Tab")
    expect(panel.locator("#setting-max-length input")).to_be_focused()
    panel.keyboard.type("64")
    expect(panel.locator("#settings-num-changed")).to_have_text("(1)")


def test_presets_fill_fields_and_say_what_they_are_for(panel: Page) -> None:
    expect(panel.locator("#preset-note")).to_have_text("The default settings of this model.")
    panel.get_by_role("radio", name="Quick look").check()
    expect(panel.locator("#setting-epochs input")).to_have_value("1")
    expect(panel.locator("#preset-note")).to_contain_text("the data and the settings work.")
    panel.get_by_role("radio", name="Adapter (LoRA)").check()
    expect(panel.locator(f"{RATE} input")).to_have_value("0.01")
    expect(panel.locator("#setting-epochs input")).to_have_value("3")
    expect(panel.locator("#settings-num-changed")).to_have_text("(2)")


def test_settings_are_copied_in_four_forms(panel: Page, address: str) -> None:
    enter(panel, "setting-epochs", "5")
    enter(panel, "run-name", "mine")
    panel.click("#settings-export summary")
    text = panel.locator("#export-text textarea")
    expect(text).not_to_have_value("")
    spec = yaml.safe_load(text.input_value())
    assert spec["epochs"] == 5
    origin = address.removesuffix("/ui")
    for form, start in (
        ("curl", f"curl {origin}/v1/fine_tuning/jobs"),
        ("Python", "import os"),
        ("Terminal", "tuneserve jobs create file-handbook --model base --suffix mine"),
    ):
        panel.locator("#export-form").get_by_label(form).check()
        expect(text).to_have_value(re.compile(f"^{re.escape(start)}"), timeout=PATIENCE_MS)
    enter(panel, "setting-epochs", "6")
    wait_until(lambda: "epochs=6" in text.input_value(), 30, "the text follows the settings")


def test_settings_are_filled_in_from_yaml(panel: Page, stub: StubApi) -> None:
    panel.click("#settings-export summary")
    panel.locator("#import-text textarea").fill("epochs: 4\nnonsense: 1")
    panel.click("#import-button")
    expect(panel.locator("#import-note")).to_contain_text("'nonsense'")
    enter(panel, "setting-epochs", "9")
    panel.locator("#import-text textarea").fill("epochs: 3")
    panel.click("#import-button")
    expect(panel.locator("#setting-epochs input")).to_have_value("3")  # as when it was shown first
    panel.locator("#import-text textarea").fill("base_model: x\nepochs: 4\ncolumns: {prompt: q}")
    panel.click("#import-button")
    expect(panel.locator("#setting-epochs input")).to_have_value("4", timeout=PATIENCE_MS)
    expect_ready(panel)
    panel.click("#start-button")
    panel.wait_for_url("**/runs?run=ftjob-new")
    assert stub.bodies[-1]["training"] == {"epochs": 4, "columns": {"prompt": "q"}}


def test_entries_survive_a_reload(panel: Page) -> None:
    panel.get_by_role("radio", name="Quick look").check()
    expect(panel.locator("#setting-epochs input")).to_have_value("1", timeout=PATIENCE_MS)
    enter(panel, "setting-epochs", "6")
    enter(panel, "run-name", "mine")
    panel.reload()
    expect(panel.locator("#setting-epochs input")).to_have_value("6", timeout=PATIENCE_MS)
    expect(panel.get_by_role("radio", name="Quick look")).to_be_checked()
    expect(panel.locator("#run-name input")).to_have_value("mine")
    panel.get_by_role("link", name="Cluster").click()
    panel.get_by_role("link", name="Fine-tune", exact=True).click()
    expect(panel.locator("#setting-epochs input")).to_have_value("3", timeout=PATIENCE_MS)


def test_setting_may_contain_a_path(panel: Page) -> None:
    panel.click("#settings-export summary")
    panel.locator("#import-text textarea").fill("columns: {path: p}")
    panel.click("#import-button")
    expect(panel.locator("#settings-num-changed")).to_have_text("(1)")
    panel.get_by_role("radio", name="Quick look").check()
    expect(panel.locator("#preset-note")).to_contain_text("the data and the settings work.")
    expect_ready(panel)


def test_run_is_started_again_with_changes(panel: Page, address: str, stub: StubApi) -> None:
    panel.goto(f"{address}/?from=ftjob-old")
    expect(panel.locator("#fine-tune-notice")).to_contain_text("of run former (ftjob-old)")
    expect(panel.locator("#setting-epochs input")).to_have_value("9", timeout=PATIENCE_MS)
    expect(panel.locator("#run-name input")).to_have_value("former")
    enter(panel, "setting-learning-rate", "0.002")
    expect_ready(panel)
    panel.click("#start-button")
    panel.wait_for_url("**/runs?run=ftjob-new")
    assert stub.bodies[-1]["training"] == {
        "epochs": 9,
        "precision": "fp32",
        "learning_rate": 0.002,
    }
    panel.goto(f"{address}/?from=ftjob-gone")
    expect(panel.locator("#fine-tune-notice")).to_contain_text("cannot be shown")
    expect_ready(panel)


def test_chosen_preset_looks_chosen_under_the_pointer(panel: Page) -> None:
    """Gradio's fill under the pointer hid the mark of what is chosen."""
    panel.click("#preset label:has-text('Quick look')")
    expect(panel.locator("#preset-note")).to_contain_text("the data and the settings work.")
    preset = panel.locator("#preset label:has-text('Quick look') input")
    expect(preset).to_be_checked()

    def is_under_pointer() -> bool:
        preset.hover()
        return bool(preset.evaluate("radio => radio.matches(':hover')"))

    wait_until(is_under_pointer, 60, "what is built later no longer moves the menu")
    preset.hover()
    fills = preset.evaluate(
        """radio => {
          const mark = document.createElement("i");
          mark.style.backgroundColor = "var(--checkbox-background-color-selected)";
          radio.parentElement.append(mark);
          const fills = [radio, mark].map((part) => getComputedStyle(part).backgroundColor);
          mark.remove();
          return [radio.matches(":hover"), ...fills];
        }"""
    )
    assert fills[0]
    assert fills[1] == fills[2]
