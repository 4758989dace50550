"""The data panel of the page "Fine-tune" in a real browser, against a stub of the HTTP API."""

import re
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.apps.stub_api import StubApi
from tests.apps.stub_rows import make_finding
from tests.e2e.fine_tune_menus import choose, enter, find_chosen
from tests.e2e.test_page import PATIENCE_MS, browser, open_context
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["browser"]

LENGTHS = {
    "num_samples": 45,
    "min": 2,
    "median": 21,
    "mean": 22.0,
    "percentile_95": 60,
    "max": 70,
    "num_over_limit": 4,
    "bin_width": 10,
    "counts": [10, 20, 5, 4, 2, 1, 2, 1],
    "num_longer": 0,
}


def add_file(stub: StubApi, file_id: str, name: str, **changes: Any) -> None:
    check = {"num_rows": 340, "format": "chat"}
    file = {**stub.files[-1], "id": file_id, "filename": name, "bytes": 12_345, "check": check}
    stub.files.insert(0, {**file, "created_at": int(time.time()) - 310, **changes})


@pytest.fixture
def stub(stub: StubApi) -> StubApi:
    """Return a stub with files of several kinds."""
    for number in range(5):
        add_file(stub, f"file-{number}aaaa{number}", "rows.csv")
    add_file(stub, "file-metrics", "step_metrics.csv", purpose="fine-tune-results")
    failed: dict[str, Any] = {"status": "error", "check": None}
    add_file(stub, "file-broken", "broken.jsonl", error_code="invalid_rows", **failed)
    add_file(stub, "file-odd", "tickets.csv", error_code="unknown_columns", **failed)
    stub.rows.rows["file-handbook"] = [
        {"question": f"What is in room {number}?", "answer": "Flour. " * (number + 10)}
        for number in range(1, 46)
    ]
    stub.rows.rows["file-odd"] = [{"question": "Where is it?", "reply": "On its way."}]
    stub.rows.lengths = LENGTHS
    stub.rows.faults = [make_finding(4, 5, "'completion' is missing", '{"prompt": "x"}')]
    return stub


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    context = open_context(browser)
    page = context.new_page()
    page.goto(f"{address}/")
    expect(page.locator("#preview mark.ts-learned").first).to_be_visible(timeout=PATIENCE_MS)
    yield page
    context.close()


def choose_file(page: Page, name: str) -> None:
    choose(page, "data-file", name)


def list_options(page: Page) -> list[str]:
    return page.locator("#data-file option").all_inner_texts()


def test_only_usable_files_of_rows_are_offered_and_told_apart(page: Page, stub: StubApi) -> None:
    options = list_options(page)
    assert len(set(options)) == len(options) == 7
    text = "\n".join(options)
    assert "step_metrics" not in text
    assert "broken.jsonl" not in text
    assert text.count("rows.csv · 12.3 kB · 340 rows · 5 min ago") == 5
    page.get_by_label("Also list files that cannot be used (1)").check()
    wait_until(lambda: len(list_options(page)) == 8, 60, "broken files are listed")
    choose_file(page, "broken.jsonl")
    expect(page.locator("#preview .ts-error")).to_be_visible(timeout=PATIENCE_MS)


def test_choice_of_data_survives_start_and_reload(page: Page, stub: StubApi) -> None:
    choose_file(page, "tickets.csv")
    expect(page.locator("#preview")).to_contain_text("Where is it?", timeout=PATIENCE_MS)
    page.reload()
    expect(find_chosen(page, "data-file")).to_have_text(re.compile("^tickets"))
    expect(page.locator("#preview")).to_contain_text("Where is it?", timeout=PATIENCE_MS)
    expect(page.locator("#start-button")).to_be_enabled()
    page.click("#start-button")
    page.wait_for_url("**/runs?run=*")
    page.get_by_role("link", name="Fine-tune").click()
    expect(find_chosen(page, "data-file")).to_have_text(re.compile("^tickets"))


def test_address_names_the_data(page: Page, stub: StubApi) -> None:
    page.goto(f"{page.url}?data=file-odd")
    expect(find_chosen(page, "data-file")).to_have_text(re.compile("^tickets"))
    page.goto(f"{page.url.partition('?')[0]}?data=file-gone")
    expect(find_chosen(page, "data-file")).to_have_text(re.compile("^The bundled handbook"))


def test_uploaded_file_is_chosen_and_can_be_deleted(
    page: Page, stub: StubApi, tmp_path: Path
) -> None:
    upload = tmp_path / "new.jsonl"
    upload.write_text('{"text": "a"}\n')
    page.set_input_files("input[type=file]", upload)
    expect(find_chosen(page, "data-file")).to_have_text(
        re.compile(r"^new\.jsonl · 10 bytes"), timeout=PATIENCE_MS
    )
    page.click("#delete-file")
    question = page.locator("#delete-file-dialog")
    expect(question).to_contain_text("new.jsonl · 10 bytes")
    page.click("#keep-file")
    expect(question).to_be_hidden()
    page.click("#delete-file")
    page.click("#confirm-delete")
    expect(find_chosen(page, "data-file")).to_have_text(re.compile("^The bundled handbook"))
    assert all(file["filename"] != "new.jsonl" for file in stub.files)
    assert not any("new.jsonl" in option for option in list_options(page))


RECORD_ERRORS_JS = """() => {
  window.seenErrors = new Set();
  const shown = "[role=alert], .toast-body.error, .ts-error, .ts-start-reason:not(.ts-pending)";
  const look = () => {
    for (const one of document.querySelectorAll(shown)) {
      const text = one.innerText.trim();
      if (text && one.checkVisibility()) window.seenErrors.add(text);
    }
  };
  new MutationObserver(look).observe(document.body,
    {childList: true, subtree: true, characterData: true, attributes: true});
}"""
"""Records the text of each error that is visible, if only for a moment."""


def write_own_columns(stub: StubApi, folder: Path, num_unchecked_reads: int) -> Path:
    """Write a file whose columns no format knows; its check ends after so many reads."""
    upload = folder / "own.csv"
    upload.write_text("question,reply\nWhy?,Because.\n")
    stub.checks["own.csv"] = {"status": "error", "error_code": "unknown_columns"}
    stub.num_unchecked_reads = num_unchecked_reads
    stub.rows.rows[f"file-{len(stub.files)}"] = [{"question": "Why?", "reply": "Because."}]
    return upload


def test_upload_with_own_columns_shows_no_error_until_they_are_guessed(
    page: Page, stub: StubApi, tmp_path: Path
) -> None:
    """The settings were checked before the columns were known: an error was shown for a moment."""
    upload = write_own_columns(stub, tmp_path, 4)
    expect(page.locator("#start-button")).to_be_enabled(timeout=PATIENCE_MS)
    page.evaluate(RECORD_ERRORS_JS)
    page.set_input_files("input[type=file]", upload)
    columns = {"prompt": "question", "completion": "reply"}
    expect(find_chosen(page, "data-file")).to_have_text(
        re.compile(r"^own\.csv"), timeout=PATIENCE_MS
    )
    expect(page.locator("#column-mapping")).to_contain_text("This is a guess", timeout=PATIENCE_MS)
    expect(page.locator("#preview mark.ts-token").first).to_have_text(
        "Because.", timeout=PATIENCE_MS
    )
    wait_until(
        lambda: columns in [asked["training"].get("columns") for asked in stub.estimates[-1:]],
        60,
        "it is checked",
    )
    expect(page.locator("#start-button")).to_be_enabled(timeout=PATIENCE_MS)
    assert page.evaluate("() => [...window.seenErrors]") == []
    page.locator("#data-file").evaluate(
        "field => field.insertAdjacentHTML('beforeend', '<p role=alert>recorded</p>')"
    )
    assert page.evaluate("() => [...window.seenErrors]") == ["recorded"]


def test_file_that_a_run_needs_is_not_deleted(page: Page, stub: StubApi) -> None:
    stub.rows.in_use.add("file-handbook")
    page.click("#delete-file")
    page.click("#confirm-delete")
    expect(page.locator(".toast-wrap")).to_contain_text("still needs file")
    assert any(file["id"] == "file-handbook" for file in stub.files)


def test_rows_are_paged_searched_and_opened(page: Page, stub: StubApi) -> None:
    page.get_by_role("tab", name="All rows").click()
    rows = page.locator("#file-rows .ts-row")
    expect(rows).to_have_count(20, timeout=PATIENCE_MS)
    page.click("#rows-next")
    expect(rows.first).to_contain_text("What is in room 21?")
    page.click("#rows-previous")
    expect(rows.first).to_contain_text("What is in room 1?")
    page.fill("#row-search input", "ROOM 45")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    expect(rows.locator("mark")).to_have_text("room 45")
    more = rows.locator("details")
    expect(more).not_to_have_attribute("open", "")
    rows.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(more).to_have_attribute("open", "")
    choose_file(page, "tickets.csv")
    expect(rows.first).to_contain_text("On its way.", timeout=PATIENCE_MS)
    expect(page.locator("#row-search input")).to_have_value("")


def test_rows_of_a_table_have_number_and_line(page: Page, stub: StubApi) -> None:
    stub.rows.first_line = 2
    choose_file(page, "tickets.csv")
    expect(page.locator("#preview .ts-line").first).to_have_text("Row 1 (line 2)")
    page.get_by_role("tab", name="All rows").click()
    expect(page.locator("#file-rows .ts-line")).to_have_text("Row 1 (line 2)")


def test_columns_are_guessed_mapped_and_sent_with_start(page: Page, stub: StubApi) -> None:
    choose_file(page, "tickets.csv")
    mapping = page.locator("#column-mapping")
    expect(mapping).to_contain_text("This is a guess", timeout=PATIENCE_MS)
    expect(find_chosen(page, "column-0")).to_have_text("question")
    expect(find_chosen(page, "column-1")).to_have_text("reply")
    expect(page.locator("#preview mark.ts-token").first).to_have_text("On its way.")
    expect(page.locator("#preview")).to_contain_text("Questions with answers")
    choose(page, "column-0", "reply")
    swapped = {"columns": {"prompt": "reply", "completion": "reply"}}
    wait_until(lambda: swapped in stub.previews, 60, "the preview follows the menus")
    choose(page, "column-1", "question")
    columns = {"prompt": "reply", "completion": "question"}
    wait_until(lambda: {"columns": columns} in stub.previews, 60, "the preview follows the menus")
    page.reload()
    expect(find_chosen(page, "column-0")).to_have_text("reply", timeout=PATIENCE_MS)
    expect(find_chosen(page, "column-1")).to_have_text("question")
    expect(page.locator("#preview")).to_contain_text("Questions with answers", timeout=PATIENCE_MS)
    page.click("#more-settings summary")
    field = page.locator("#setting-columns textarea, #setting-columns input")
    expect(field).to_have_value(re.compile('"prompt": "reply"'))
    page.click("#start-button")
    page.wait_for_url("**/runs?run=*")
    assert stub.bodies[-1]["training"] == {"columns": columns}


def test_value_entered_while_a_preview_is_loading_is_previewed(page: Page, stub: StubApi) -> None:
    loading = threading.Event()
    page.click("#more-settings summary")
    field = page.locator("#setting-columns textarea, #setting-columns input")
    stub.preview_holds = [loading]
    field.fill('{"prompt": "q"}')
    field.blur()
    wait_until(lambda: {"columns": {"prompt": "q"}} in stub.previews, 60, "a preview is loading")
    field.fill("{'prompt': 'q'}")
    field.blur()
    page.wait_for_timeout(500)  # the page would have sent the second value by now
    loading.set()
    expect(page.locator("#preview .ts-error")).to_contain_text(
        "Columns is not JSON", timeout=PATIENCE_MS
    )


def test_file_chosen_while_a_preview_is_loading_is_previewed(page: Page, stub: StubApi) -> None:
    loading = threading.Event()
    num_previews = len(stub.previews)
    stub.preview_holds = [loading]
    choose_file(page, "tickets.csv")
    wait_until(lambda: len(stub.previews) > num_previews, 60, "a preview is loading")
    choose_file(page, "The bundled handbook")
    page.wait_for_timeout(500)
    loading.set()
    expect(page.locator("#preview")).to_contain_text("base knows", timeout=PATIENCE_MS)


def test_columns_of_one_file_are_not_sent_for_another(page: Page, stub: StubApi) -> None:
    choose_file(page, "tickets.csv")
    expect(page.locator("#column-mapping")).to_contain_text("This is a guess", timeout=PATIENCE_MS)
    choose_file(page, "The bundled handbook")
    expect(page.locator("#column-mapping")).not_to_contain_text(
        "This is a guess", timeout=PATIENCE_MS
    )
    expect(page.locator("#preview")).to_contain_text("base knows")
    assert stub.previews[-1] == {}


def test_lengths_and_faults_are_shown_and_downloaded(page: Page, stub: StubApi) -> None:
    stub.rows.num_running = 1
    page.get_by_role("tab", name="Lengths and faults").click()
    shown = page.locator("#row-statistics")
    expect(shown).to_contain_text("Reading all rows", timeout=PATIENCE_MS)
    expect(shown.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("4 are longer than the limit of 64"), timeout=PATIENCE_MS
    )
    assert shown.locator("rect").count() == len(LENGTHS["counts"])  # type: ignore[arg-type]
    expect(shown.locator("line.ts-limit")).to_have_count(1)
    marks = page.locator(".ts-ticks span")
    expect(marks).to_have_text(["0", "40", "80"])
    boxes = [mark.bounding_box() for mark in marks.all()]
    lefts = [box["x"] for box in boxes if box is not None]
    assert all(right - left > 100 for left, right in pairwise(lefts)), lefts
    expect(shown.locator(".ts-findings")).to_contain_text("Row 4 (line 5)")
    with page.expect_download() as download:
        page.click("#save-faults")
    assert download.value.suggested_filename == "file-handbook-faults.csv"
    saved = Path(download.value.path()).read_text()
    assert saved.splitlines()[1] == "4,5,'completion' is missing"
    expect(page.locator("#save-duplicates")).to_be_hidden()


def test_file_that_the_dialog_names_is_deleted(page: Page, stub: StubApi) -> None:
    choose_file(page, "tickets.csv")
    expect(page.locator("#preview")).to_contain_text("Where is it?", timeout=PATIENCE_MS)
    page.click("#delete-file")
    choose_file(page, "The bundled handbook")  # as at the end of an upload
    expect(page.locator("#preview")).to_contain_text("base knows", timeout=PATIENCE_MS)
    expect(page.locator("#delete-file-name")).to_contain_text("tickets.csv")
    page.click("#confirm-delete")
    wait_until(lambda: all(file["id"] != "file-odd" for file in stub.files), 30, "it is deleted")
    assert any(file["id"] == "file-handbook" for file in stub.files)


def test_preview_of_former_data_is_not_shown_for_others(page: Page, stub: StubApi) -> None:
    loading = threading.Event()
    stub.preview_holds = [loading]
    choose_file(page, "tickets.csv")
    wait_until(lambda: not stub.preview_holds, 60, "a preview is loading")
    page.get_by_role("tab", name="All rows").click()
    choose_file(page, "The bundled handbook")
    rows = page.locator("#file-rows .ts-row")
    expect(rows.first).to_contain_text("What is in room 1?", timeout=PATIENCE_MS)
    loading.set()
    page.get_by_role("tab", name="First rows as tokens").click()
    expect(page.locator("#preview")).to_contain_text("base knows", timeout=PATIENCE_MS)


def test_contradicting_columns_are_not_remembered(page: Page, stub: StubApi) -> None:
    stub.rows.rows["file-odd"] = [{"question": "Where?", "reply": "Here.", "story": "Long ago."}]
    choose_file(page, "tickets.csv")
    expect(find_chosen(page, "column-1")).to_have_text("reply", timeout=PATIENCE_MS)
    choose(page, "column-3", "story")
    expect(find_chosen(page, "column-1")).to_have_text("by its name", timeout=PATIENCE_MS)
    page.reload()
    expect(find_chosen(page, "column-3")).to_have_text("story", timeout=PATIENCE_MS)
    expect(find_chosen(page, "column-0")).to_have_text("by its name")


def test_page_opens_with_an_odd_cookie(page: Page, address: str) -> None:
    for value in ("null", "5", "%5B%5D", "%7B%22data%22%3A5%7D", "no%20JSON"):
        cookie: Any = {"name": "tuneserve-choice", "value": value, "url": f"{address}/"}
        page.context.add_cookies([cookie])
        page.goto(f"{address}/")
        expect(page.locator("#start-button")).to_be_enabled(timeout=PATIENCE_MS)


def test_choices_are_free_while_a_large_file_is_checked(
    page: Page, stub: StubApi, tmp_path: Path
) -> None:
    page.set_input_files("input[type=file]", write_own_columns(stub, tmp_path, 10_000))
    expect(find_chosen(page, "data-file")).to_contain_text("being checked", timeout=PATIENCE_MS)
    expect(page.locator("#start-reason")).to_have_text("The file is still being checked…")
    expect(page.locator(".ts-fine-tune-page")).to_have_attribute("aria-busy", "false")
    page.locator("#task select").select_option("sequence_classification")
    expect(page.locator("#task select")).to_have_value("sequence_classification")
    expect(page.locator(".ts-fine-tune-page")).to_have_attribute("aria-busy", "false")
    enter(page, "run-name", "two words")
    expect(page.locator("#run-name .ts-field-error")).to_be_visible(timeout=PATIENCE_MS)
    enter(page, "run-name", "mine")
    enter(page, "setting-epochs", "7")
    expect(page.locator("#start-reason")).to_have_text("The file is still being checked…")
    stub.num_unchecked_reads = 0
    expect(find_chosen(page, "data-file")).not_to_contain_text("being checked")
    expect(page.locator("#task select")).to_have_value("sequence_classification")  # it was chosen
    expect(page.locator("#setting-epochs input")).to_have_value("7")
    choose(page, "task", "Generate text")
    expect(page.locator("#column-mapping")).to_contain_text("This is a guess", timeout=PATIENCE_MS)


def test_rows_stay_when_something_else_is_chosen(page: Page, stub: StubApi) -> None:
    page.get_by_role("tab", name="All rows").click()
    rows = page.locator("#file-rows .ts-row")
    expect(page.locator("#rows-next")).to_be_enabled(timeout=PATIENCE_MS)
    page.locator("#rows-next").focus()
    page.keyboard.press("Enter")
    expect(rows.first).to_contain_text("What is in room 21?", timeout=PATIENCE_MS)
    expect(page.locator("#rows-next")).to_be_focused()
    page.keyboard.press("Enter")
    expect(rows).to_have_count(5)  # the last page: the focus goes to the other button
    expect(page.locator("#rows-previous")).to_be_focused()
    num_asked = len(stub.rows.asked)
    page.locator("#preset").get_by_text("Quick look").click()
    expect(page.locator("#setting-epochs input")).to_have_value("1")
    expect(page.locator(".ts-fine-tune-page")).to_have_attribute("aria-busy", "false")
    expect(rows.first).to_contain_text("What is in room 41?")
    expect(page.locator("#start-button")).to_be_enabled()  # later than a request of rows
    assert [asked for asked in stub.rows.asked[num_asked:] if asked.get("after") == "40-40-0"] == []


def test_tabs_are_chosen_by_keyboard(page: Page) -> None:
    tabs = page.get_by_role("tab")
    tabs.first.focus()
    for key, place in (("End", 2), ("ArrowRight", 0), ("ArrowLeft", 2), ("Home", 0)):
        page.keyboard.press(key)
        expect(tabs.nth(place)).to_be_focused()
        expect(tabs.nth(place)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Tab")
    expect(page.locator("#panel-tokens")).to_be_focused()  # so that it can be scrolled


def test_unread_settings_can_be_read_again(page: Page, stub: StubApi) -> None:
    stub.deleted_models.append("base")
    choose_file(page, "tickets.csv")
    reason = page.locator("#start-reason")
    expect(reason).to_contain_text("Try again", timeout=PATIENCE_MS)
    stub.deleted_models.remove("base")
    reason.click()
    expect(page.locator("#preview")).to_contain_text("Where is it?", timeout=PATIENCE_MS)
    expect(page.locator("#start-button")).to_be_enabled(timeout=PATIENCE_MS)
