"""The page "Runs" in a real browser, against a stub of the HTTP API: no cluster is started."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect

from tests.apps.stub_api import HOSTILE, StubApi
from tests.apps.stub_runs import make_checkpoint, make_metrics
from tests.e2e.test_page import browser, count_points, open_context
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["browser"]

MAX_BYTES_PER_MINUTE = 150_000
NUM_MEASURED = 12
TRAINING = {
    "task": "causal_lm",
    "epochs": 5,
    "learning_rate": 0.001,
    "precision": "bf16",
    "columns": {},
    "adapter": None,
}


@pytest.fixture
def address(address: str) -> str:
    return f"{address}/runs"


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A tab; fails on an error of a script."""
    context = open_context(browser)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


def add_run(stub: StubApi, run_id: str, status: str, num_steps: int = 0, **changes: Any) -> None:
    """Add a run named like its id, with the metrics of some steps."""
    now = int(time.time())
    times = {"created_at": now - 100, "started_at": now - 90}
    if status in ("succeeded", "failed", "cancelled"):
        times["finished_at"] = now - 10
    if num_steps:
        stub.runs.metrics[run_id] = make_metrics(num_steps)
        loss = stub.runs.metrics[run_id][-1]["loss"]
        changes = {"progress": {"step": num_steps, "num_steps": 100, "loss": loss}, **changes}
    stub.add_job(
        run_id, status, **{"training": TRAINING, "user_provided_suffix": run_id, **times, **changes}
    )


def open_view(page: Page, address: str, query: str = "") -> Page:
    page.goto(f"{address}{query}")
    expect(page.locator(".ts-runs-page")).to_have_attribute("aria-busy", "false")
    return page


def test_page_shows_what_its_document_has_and_asks_for_the_changes(
    page: Page, stub: StubApi, address: str
) -> None:
    add_run(stub, "ftjob-1", "running", num_steps=5)
    asked: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if "/queue/join" in request.url and request.post_data_json:
            asked.append(request.post_data_json["event_data"])

    page.on("request", note)
    open_view(page, address, "?run=ftjob-1")
    add_run(stub, "ftjob-1", "running", num_steps=9)
    wait_until(lambda: count_points(page) == 9, 60, "the curve grows")
    assert asked[0]["applied"] > 0  # the message in the document
    assert asked[0]["run"] == "ftjob-1"


def list_names(page: Page) -> list[str]:
    return page.locator(".ts-run-table tbody th").all_inner_texts()


def find_chart(page: Page, name: str = "loss") -> Locator:
    return page.locator(f"[data-chart={name}]:visible")


def read_number(chart: Locator, name: str) -> float:
    return float(chart.get_attribute(f"data-{name}") or "nan")


def test_list_shows_filters_and_opens_runs(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "first", "succeeded", 30)
    add_run(stub, "second", "failed", 10)
    add_run(stub, "third", "running", 20)
    open_view(page, address)
    assert list_names(page) == ["third", "second", "first"]
    row = page.locator("tr", has_text="third")
    expect(row).to_contain_text("Running")
    expect(row).to_contain_text("20%")
    expect(row.locator("svg.ts-spark")).to_be_visible()
    expect(row.locator("[data-since]")).to_have_text(re.compile("1 min"))

    page.select_option("#run-state", "failed")
    expect(page.locator(".ts-run-table tbody tr")).to_have_count(1)
    assert page.url.endswith("?state=failed")
    page.select_option("#run-state", "")
    page.fill("#run-search", "FIR")
    expect(page.locator(".ts-run-table tbody th")).to_have_text(["first"])
    page.reload()
    expect(page.locator("#run-search")).to_have_value("FIR")
    expect(page.locator(".ts-run-table tbody th")).to_have_text(["first"])

    page.click("text=first")
    expect(page.locator("#run-detail h2")).to_have_text("first")
    assert page.url.endswith("?run=first")
    expect(page).to_have_title("first · Tuneserve")
    expect(page.locator("#run-list")).to_be_hidden()
    page.go_back()
    expect(page.locator("#run-list")).to_be_visible()
    expect(page.locator(".ts-run-table tbody th")).to_have_text(["first"])


def test_list_changes_while_it_is_open(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "first", "running", 10)
    open_view(page, address)
    page.check("[data-select=first]")
    page.locator("[data-select=first]").focus()
    add_run(stub, "second", "queued", started_at=None)
    stub.jobs["first"]["status"] = "succeeded"
    expect(page.locator("tr", has_text="first")).to_contain_text("Succeeded")
    expect(page.locator(".ts-run-table tbody th")).to_have_text(["second", "first"])
    expect(page.locator("[data-select=first]")).to_be_checked()
    expect(page.locator("[data-select=first]")).to_be_focused()


def test_older_runs_are_on_further_pages(page: Page, stub: StubApi, address: str) -> None:
    for number in range(120):
        add_run(stub, f"run-{number:03d}", "succeeded")
    open_view(page, address)
    expect(page.locator("#newer-runs")).to_be_hidden()
    page.click("#older-runs")
    expect(page.locator(".ts-run-table tbody th").first).to_have_text("run-069")
    page.click("#older-runs")
    expect(page.locator(".ts-run-table tbody tr")).to_have_count(20)
    expect(page.locator("#older-runs")).to_be_hidden()
    page.click("#newer-runs")
    page.click("#newer-runs")
    expect(page.locator(".ts-run-table tbody th").first).to_have_text("run-119")
    expect(page.locator("#newer-runs")).to_be_hidden()


def test_settings_show_what_differs_and_are_filtered(
    page: Page, stub: StubApi, address: str
) -> None:
    add_run(stub, "mine", "succeeded", 10)
    open_view(page, address, "?run=mine")
    settings = page.locator("#run-settings")
    expect(settings).to_contain_text("1 of 6 settings changed")
    rows = settings.locator("tbody tr:visible")
    expect(rows).to_have_count(6)
    page.check("#changed-only")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Epochs")
    expect(rows).to_contain_text("default 3")
    page.uncheck("#changed-only")
    page.fill("#settings-search", "learning_r")
    expect(rows).to_have_count(1)
    expect(settings.locator("table:visible")).to_have_count(1)


def test_curves_keep_choices_while_steps_are_added(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "mine", "running", 60)
    open_view(page, address, "?run=mine")
    chart = find_chart(page)
    expect(chart).to_have_attribute("data-points", "60")
    assert count_points(page) == 60
    for name in ("learning_rate", "grad_norm", "tokens_per_s", "peak_memory_bytes"):
        expect(find_chart(page, name).locator("canvas")).to_be_visible()
    expect(chart.locator("figcaption b")).to_have_text("Training and validation loss")
    expect(chart).to_contain_text("Validation loss")
    expect(chart.locator(".ts-sr")).to_contain_text("Training loss: 60 points, first")

    page.check("#run-curves [data-curve=log]")
    expect(chart).to_have_attribute("data-scale", "log")
    page.select_option("#run-curves [data-curve=axis]", "trained_tokens")
    expect(chart).to_have_attribute("data-axis", "trained_tokens")
    page.fill("#run-curves [data-curve=smoothing]", "0.5")
    smoothed = read_number(chart, "smoothed")
    zoom = drag_over(page, chart)
    stub.runs.metrics["mine"] = make_metrics(60) + make_metrics(63)[60:]
    expect(chart).to_have_attribute("data-points", "63")
    assert chart.get_attribute("data-zoom") == zoom
    assert chart.get_attribute("data-scale") == "log"
    assert read_number(chart, "smoothed") != smoothed
    page.reload()
    expect(chart).to_have_attribute("data-scale", "log")
    expect(page.locator("#run-curves [data-curve=smoothing]")).to_have_value("0.5")


def drag_over(page: Page, chart: Locator) -> str:
    """Zoom into the middle of a chart, and return its range."""
    whole = chart.get_attribute("data-zoom")
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    page.mouse.up()
    wait_until(lambda: chart.get_attribute("data-zoom") != whole, 10, "the chart is zoomed")
    return chart.get_attribute("data-zoom") or ""


def test_smoothed_curve_does_not_lag(page: Page, stub: StubApi, address: str) -> None:
    """The smoothed loss was 3.3 where the loss had fallen to 2.35."""
    falling = [{**line, "loss": 5 - line["step"] * 0.0265} for line in make_metrics(100)]
    add_run(stub, "mine", "running", 100)
    stub.runs.metrics["mine"] = falling
    open_view(page, address, "?run=mine")
    chart = find_chart(page)
    assert read_number(chart, "last") == pytest.approx(2.35)
    assert read_number(chart, "smoothed") == pytest.approx(2.35, abs=0.01)
    noisy = page.evaluate(
        """() => {
          const xs = Array.from({length: 400}, (_, x) => x);
          const ys = xs.map((x) => (x % 2 ? 3 : 1));
          return tuneserveCurves.smooth(xs, ys, 0.95);
        }"""
    )
    assert 1 <= noisy[0] <= 3  # not pulled towards 0
    assert all(abs(value - 2) < 0.25 for value in noisy[100:])


def test_smoothed_curve_stays_among_the_points(page: Page, stub: StubApi, address: str) -> None:
    """A loss that fell to 0.3, ever more slowly, was shown as -0.2."""
    add_run(stub, "mine", "running", 100)
    open_view(page, address, "?run=mine")
    find_chart(page).wait_for()
    raw = [8.7, 7.9, 6.8, 8.5, 4.5, 2.7, 5.4, 2.2, 2.5, 3.5, 0.6, 0.8, 0.5, 2.4, 1.6, 0.3]
    raw += [0.2, 1.5, 1.1, 0.4, 0.2, 0.7, 0.9, 0.2, 0.1, 0.5, 0.1, 0.6, 0.1, 0.1, 0.5, 0.3]
    smoothed = page.evaluate("(ys) => tuneserveCurves.smooth(ys.map((_, x) => x), ys, 0.9)", raw)
    assert min(smoothed) >= 0.1
    means = [sum(raw[i - 4 : i + 5]) / 9 for i in range(4, len(raw) - 4)]
    differences = [abs(a - b) for a, b in zip(smoothed[4:-4], means, strict=True)]
    assert max(differences) < 0.9


def test_tooltip_and_legend(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "mine", "running", 60)
    open_view(page, address, "?run=mine")
    chart = find_chart(page)
    chart.locator(".u-over").hover()
    expect(chart.locator(".ts-tooltip")).to_contain_text("Step 3")
    expect(chart.locator(".ts-tooltip")).to_contain_text("Validation loss")
    entry = chart.get_by_role("button", name="Validation loss")
    entry.click()
    expect(entry).to_have_attribute("aria-pressed", "false")
    chart.locator(".u-over").hover()
    expect(chart.locator(".ts-tooltip")).not_to_contain_text("Validation loss")


def test_checkpoints_are_tried_and_published(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "mine", "running", 20)
    losses = ((20, 1.5), (10, 1.25))
    stub.runs.checkpoints["mine"] = [make_checkpoint("mine", *one) for one in losses]
    open_view(page, address, "?run=mine")
    rows = page.locator(".ts-checkpoints tbody tr")
    expect(rows.nth(1)).to_contain_text("1.2500 best")
    expect(rows.nth(0).locator("a")).to_have_attribute("href", "./chat?model=base-tuned-step-20")
    page.get_by_role("button", name="Publish step 10").click()
    expect(page.locator("#publish-name")).to_have_value("base-tuned-step-10")
    page.fill("#publish-name", "early")
    stub.runs.models["early"] = {"run_id": "mine", "checkpoint_step": 10}
    page.click("#publish-confirm")
    expect(rows.nth(1)).to_contain_text("published as early")
    assert stub.runs.published == [("mine", "mine-step-10", "early")]


def test_result_is_promoted_and_downloaded(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "mine", "succeeded", 10, fine_tuned_model="tuned", result_files=["file-m"])
    open_view(page, address, "?run=mine")
    expect(page.locator("#run-detail .ts-result code")).to_have_text("tuned")
    expect(page.locator("#chat-with-it")).to_have_attribute("href", "./chat?model=tuned")
    link = page.get_by_role("link", name="Download the model")
    expect(link).to_have_attribute("href", "/v1/models/tuned/archive?format=zip")
    page.click("text=Download from a terminal")
    origin = address.removesuffix("/ui/runs")
    expect(page.locator(".ts-commands")).to_contain_text(f"curl -OJ '{origin}/v1/models/tuned")
    page.click("#promote-button")
    expect(page.locator("#run-detail .ts-result .ts-badge")).to_have_text("latest")
    expect(page.locator("#promote-button")).to_be_hidden()
    assert stub.latest == "tuned"


def test_run_is_paused_resumed_and_cancelled(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "mine", "running", 10)
    open_view(page, address, "?run=mine")
    status = page.locator("#run-status")
    page.click("#pause-button")
    expect(status).to_have_text("Paused")
    expect(page.locator("#run-detail")).to_contain_text("resumes from its last checkpoint")
    expect(page.locator("#pause-button")).to_be_hidden()
    stub.jobs["mine"]["resumable"] = True
    page.click("#resume-button")
    expect(status).to_have_text("Waiting")
    page.click("#cancel-button")
    expect(status).to_have_text("Cancelled")


def test_refused_change_is_reported_and_can_be_repeated(
    page: Page, stub: StubApi, address: str
) -> None:
    add_run(stub, "mine", "failed", 10)
    open_view(page, address, "?run=mine")
    job = stub.jobs.pop("mine")
    page.click("#delete-button")
    page.click("#delete-confirm")
    expect(page.locator(".toast-wrap")).to_contain_text("There is no job")
    expect(page.locator("#runs-notice")).to_contain_text("There is no job")
    stub.jobs["mine"] = job
    expect(page.locator("#runs-notice .ts-notice")).to_have_count(0)
    expect(page.locator("#delete-button")).to_have_text("Delete")


def test_run_is_deleted_after_confirmation(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "kept", "failed")
    add_run(stub, "mine", "failed", 10)
    open_view(page, address, "?run=mine")
    again = page.locator("#again-button")
    expect(again).to_have_attribute("href", "./?from=mine")
    page.click("#delete-button")
    page.get_by_role("button", name="Back").click()
    expect(page.locator("#delete-dialog")).to_be_hidden()
    assert "mine" in stub.jobs
    page.click("#delete-button")
    page.click("#delete-confirm")
    expect(page.locator("#run-list")).to_be_visible()
    expect(page.locator(".ts-run-table tbody th")).to_have_text(["kept"])
    assert "mine" not in stub.jobs


def test_run_is_extended_by_the_new_number_of_epochs(
    page: Page, stub: StubApi, address: str
) -> None:
    add_run(stub, "mine", "succeeded", 10, fine_tuned_model="tuned")
    open_view(page, address, "?run=mine")
    expect(page.locator("#again-button")).to_be_visible()
    expect(page.locator("#extend-button")).to_have_count(0)  # no checkpoint is left
    stub.runs.checkpoints["mine"] = [make_checkpoint("mine", 10)]
    page.reload()
    page.click("#extend-button")
    field = page.get_by_label("Epochs in all")
    expect(field).to_have_value("8")
    expect(page.get_by_label("Steps in all")).to_be_hidden()
    expect(page.locator("#extend-hint")).to_have_text("More than the 5 of this run.")
    expect(page.locator("#extend-early")).to_be_hidden()
    page.get_by_role("button", name="Back").click()
    assert stub.runs.extended == []
    page.click("#extend-button")
    field.fill("5")
    page.click("#extend-confirm")
    assert field.evaluate("field => field.validity.rangeUnderflow")
    assert stub.runs.extended == []
    field.fill("600")
    page.click("#extend-confirm")
    error = page.locator("#extend-error")
    expect(error).to_have_text("Epochs is 600: it should be at most 500")
    expect(field).to_have_attribute("aria-invalid", "")
    expect(field).to_be_focused()
    expect(page.locator("#extend-button")).to_be_enabled()
    field.fill("7")
    page.get_by_label("Name of the run").fill("longer")
    page.click("#extend-confirm")
    expect(page.locator("#extend-dialog")).to_be_hidden()
    expect(page.locator("#run-detail h2")).to_have_text("longer")
    expect(page).to_have_url(re.compile(r"\?run=mine-extended$"))
    assert stub.runs.extended[-1] == ("mine", {"epochs": 7, "suffix": "longer"})
    expect(find_chart(page)).to_have_attribute("data-points", "10")  # the earlier steps
    page.click("#extended-run")
    expect(page.locator("#run-detail h2")).to_have_text("mine")


def open_extension(page: Page, stub: StubApi, address: str, **settings: int) -> None:
    """Open the dialog that extends a run of 10 steps, with some settings of the run."""
    training = {**TRAINING, **settings}
    add_run(stub, "mine", "succeeded", 10, fine_tuned_model="tuned", training=training)
    stub.runs.checkpoints["mine"] = [make_checkpoint("mine", 10)]
    open_view(page, address, "?run=mine")
    page.click("#extend-button")


def test_extension_of_a_run_that_stopped_early_names_its_patience(
    page: Page, stub: StubApi, address: str
) -> None:
    open_extension(page, stub, address, early_stopping_patience=3)
    expect(page.locator("#extend-early")).to_contain_text("after 3 evaluations without a better")


def test_run_that_ended_at_max_steps_is_extended_by_steps(
    page: Page, stub: StubApi, address: str
) -> None:
    open_extension(page, stub, address, max_steps=10)
    steps, epochs = page.get_by_label("Steps in all"), page.get_by_label("Epochs in all")
    expect(steps).to_have_value("15")
    expect(epochs).to_have_value("8")
    expect(page.locator("#extend-hint")).to_have_text("More than the 10 of this run.")
    expect(page.locator("#extend-both")).to_be_visible()
    epochs.fill("600")
    page.click("#extend-confirm")
    expect(epochs).to_have_attribute("aria-invalid", "")
    expect(epochs).to_be_focused()
    assert steps.get_attribute("aria-invalid") is None
    epochs.fill("8")
    page.click("#extend-confirm")
    expect(page.locator("#extended-run")).to_have_text("mine")
    assert stub.runs.extended[-1] == ("mine", {"epochs": 8, "max_steps": 15})


def test_refusal_marks_only_the_field_that_it_is_about(
    page: Page, stub: StubApi, address: str
) -> None:
    add_run(stub, "mine", "succeeded", 10, fine_tuned_model="tuned")
    stub.runs.checkpoints["mine"] = [make_checkpoint("mine", 10)]
    open_view(page, address, "?run=mine")
    page.click("#extend-button")
    length, name = page.get_by_label("Epochs in all"), page.get_by_label("Name of the run")
    error = page.locator("#extend-error")
    name.fill("large")
    page.click("#extend-confirm")
    expect(error).to_have_text("Models have 9 bytes, and 9 more would exceed 10; delete models")
    expect(page.locator("#extend-dialog [aria-invalid]")).to_have_count(0)
    name.fill("taken")
    page.click("#extend-confirm")
    expect(error).to_contain_text("'taken', expected another one")
    expect(name).to_have_attribute("aria-invalid", "")
    expect(name).to_be_focused()
    assert length.get_attribute("aria-invalid") is None


def test_extend_dialog_does_not_get_stuck(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "mine", "succeeded", 10, fine_tuned_model="tuned")
    stub.runs.checkpoints["mine"] = [make_checkpoint("mine", 10)]
    open_view(page, address)
    page.click("text=mine")
    page.click("#extend-button")
    length, confirm = page.get_by_label("Epochs in all"), page.locator("#extend-confirm")
    length.fill("1e21")
    confirm.click()
    assert length.evaluate("field => field.validity.rangeOverflow")
    length.evaluate("field => field.removeAttribute('max')")
    confirm.click()
    expect(page.locator("#extend-error")).to_contain_text("not a whole number")
    expect(confirm).to_be_enabled()
    confirm.evaluate("button => { button.disabled = true; }")  # as if an answer was lost
    page.get_by_role("button", name="Back").click()
    page.click("#extend-button")
    expect(confirm).to_be_enabled()
    page.go_back()
    expect(page.locator("#extend-dialog")).to_be_hidden()
    assert stub.runs.extended == []


def test_log_is_followed_and_searched(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "mine", "running", 10)
    lines = [f"step {number}: loss 1.5" for number in range(500)]
    stub.runs.logs["mine"] = ("\n".join(lines) + f"\n{HOSTILE}\n").encode()
    open_view(page, address, "?run=mine")
    page.click("#run-log summary")
    log = page.locator("#log-text")
    expect(log).to_contain_text(HOSTILE)
    expect(page.locator("#log-follow")).to_be_checked()
    is_at_end = "e => e.scrollTop + e.clientHeight >= e.scrollHeight - 10"
    wait_until(lambda: log.evaluate(is_at_end), 10, "the log shows its end")
    stub.runs.logs["mine"] += b"a new line\n"
    expect(log).to_contain_text("a new line")
    assert log.evaluate(is_at_end)
    log.evaluate("e => { e.scrollTop = 100; }")
    expect(page.locator("#log-follow")).not_to_be_checked()
    stub.runs.logs["mine"] += b"another line\n"
    expect(log).to_contain_text("another line")
    assert log.evaluate("e => e.scrollTop") == 100
    page.fill("#log-search", "STEP 4: ")
    expect(log).to_have_text("step 4: loss 1.5\n")
    expect(log.locator("mark")).to_have_text("step 4: ")
    expect(page.locator("#log-note")).to_have_text("1 line")
    page.fill("#log-search", "")
    expect(log).to_contain_text("another line")


def test_waiting_run_is_not_shown_as_started(page: Page, stub: StubApi, address: str) -> None:
    reason = "number 2 in the queue"
    add_run(stub, "mine", "queued", started_at=None, waiting_for=reason)
    open_view(page, address, "?run=mine")
    detail = page.locator("#run-detail")
    expect(detail).to_contain_text("waiting since")
    expect(page.locator("#run-stage")).to_have_text("Waiting: number 2 in the queue")
    expect(detail).not_to_contain_text("started")
    expect(detail.locator("time")).to_have_attribute("datetime", re.compile("Z$"))


def test_duration_only_grows(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "mine", "running", 10)
    open_view(page, address, "?run=mine")
    duration = page.locator("#run-detail [data-since]")
    expect(duration).to_have_text(re.compile("1 min"))
    seen = [read_seconds(duration)]
    for status in ("paused", "queued", "running"):
        stub.jobs["mine"]["status"] = status
        words = {"paused": "Paused", "queued": "Waiting", "running": "Running"}
        expect(page.locator("#run-status")).to_have_text(words[status])
        seen.append(read_seconds(duration))
    assert seen == sorted(seen)
    assert seen[0] >= 90


def read_seconds(duration: Locator) -> int:
    minutes, seconds = re.findall(r"\d+", duration.inner_text())
    return int(minutes) * 60 + int(seconds)


def test_runs_are_compared(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "first", "succeeded", 30)
    add_run(stub, "second", "running", 20, training={**TRAINING, "epochs": 7})
    add_run(stub, "third", "succeeded", 20)
    open_view(page, address)
    expect(page.locator("#compare-button")).to_be_hidden()
    page.check("[data-select=first]")
    page.check("[data-select=second]")
    expect(page.locator("#compare-button")).to_have_text("Compare 2 runs")
    page.click("#compare-button")
    chart = page.locator("#compare-curves [data-chart=loss]")
    expect(chart.locator("canvas")).to_be_visible()
    expect(chart.get_by_role("button")).to_have_count(2)
    expect(chart.locator("figcaption b")).to_have_text("Training loss")
    settings = page.locator("#compare-settings tbody tr")
    expect(settings).to_have_count(1)
    expect(settings.locator("td")).to_have_text(["5", "7"])
    assert page.url.endswith("?compare=first,second")
    page.reload()
    expect(settings.locator("td")).to_have_text(["5", "7"])
    stub.runs.metrics["second"] = make_metrics(25)
    expect(page.locator("#compare-figures tr", has_text="Steps").locator("td")).to_have_text(
        ["30", "25"]
    )
    page.locator("#compare-figures").get_by_role("link", name="second").click()
    expect(page.locator("#run-detail h2")).to_have_text("second")


def test_on_a_phone_a_run_is_above_everything(page: Page, stub: StubApi, address: str) -> None:
    for number in range(60):
        add_run(stub, f"run-{number}", "succeeded", 10)
    page.set_viewport_size({"width": 390, "height": 800})
    open_view(page, address)
    page.click("text=run-30")
    detail = page.locator("#run-detail")
    expect(detail).to_be_in_viewport()
    expect(page.locator("#run-list")).to_be_hidden()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390
    page.click(".ts-view-run .ts-back")
    expect(page.locator("#run-list")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_curves_follow_dark_mode(page: Page, stub: StubApi, address: str) -> None:
    add_run(stub, "mine", "succeeded", 30)
    open_view(page, address, "?run=mine")
    canvas = find_chart(page).locator("canvas")
    expect(canvas).to_be_visible()
    drawn = "e => e.toDataURL()"
    light = canvas.evaluate(drawn)
    page.evaluate("document.body.classList.add('dark')")
    wait_until(lambda: canvas.evaluate(drawn) != light, 10, "the chart has the dark colours")


def test_reader_sees_no_buttons_that_change_runs(
    page: Page, stub: StubApi, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stub, "permissions", ["jobs.read", "models.read"])
    add_run(stub, "mine", "succeeded", 10, fine_tuned_model="tuned")
    stub.runs.checkpoints["mine"] = [make_checkpoint("mine", 10)]
    open_view(page, address, "?run=mine")
    expect(page.locator("#chat-with-it")).to_be_visible()
    expect(page.locator(".ts-checkpoints tbody tr")).to_have_count(1)
    expect(page.locator("[data-action]:visible, [data-publish]:visible")).to_have_count(0)


def count_bytes(request: Request) -> int:
    """Return the bytes of a request and its response, with their headers."""
    sizes = request.sizes()
    return (
        sizes["requestHeadersSize"]
        + sizes["requestBodySize"]
        + sizes["responseHeadersSize"]
        + sizes["responseBodySize"]
    )


@pytest.mark.parametrize("query", ["", "?run=long"])
def test_idle_page_causes_little_traffic(
    page: Page, stub: StubApi, address: str, query: str
) -> None:
    for number in range(200):
        add_run(stub, f"run-{number}", "succeeded", 50)
    add_run(stub, "long", "running", 100_000)
    stub.runs.logs["long"] = b"2026-11-26 INFO training.loop: a line of the log\n" * 1_000_000
    open_view(page, address, query)
    if query:
        page.click("#run-log summary")
        expect(page.locator("#log-text")).to_contain_text("a line of the log")
    requests: list[Request] = []
    page.on("requestfinished", lambda request: requests.append(request))
    begin = time.monotonic()
    while len(requests) < NUM_MEASURED:
        page.wait_for_event("requestfinished")
    took_s = time.monotonic() - begin
    num_bytes = sum(count_bytes(request) for request in requests)
    per_minute = num_bytes / took_s * 60
    print(f"{query or 'list'}: {per_minute / 1000:.0f} KB per minute")
    assert per_minute < MAX_BYTES_PER_MINUTE
