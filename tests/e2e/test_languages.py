"""The page in other languages, in a browser."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from apps.ui.settings import UiSettings
from tests.apps.stub_api import LocalServer, StubApi, build_stub
from tests.apps.stub_evaluations import add_sample_evaluations
from tests.apps.stub_runs import make_checkpoint, make_metrics
from tests.apps.ui.page_server import serve_page
from tests.e2e.fine_tune_menus import choose, find_chosen
from tests.e2e.stub_pages import READY
from tests.e2e.test_accessibility import IS_STEADY_JS, MORE_RULES, RULES, describe
from tests.e2e.test_page import PATIENCE_MS, browser
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.long]

__all__ = ["browser"]

CARD = {
    "license": "apache-2.0",
    "files": [{"name": "Data", "bytes": 10}],
    "num_parameters": 1_000_000,
    "dtype": "float32",
    "context_length": 512,
    "architecture": "Text",
    "text": "# Models\n\nRunning",
}
UNTRANSLATED_JS = """() => {
  const { isTranslated, attributes, kept, names } = tuneserveLanguage;
  const found = [];
  const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_ALL);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
    if (node.nodeType === Node.COMMENT_NODE || element.closest(names)) continue;
    const nearest = element.closest(`[translate=yes], ${kept}`);
    if (nearest && nearest.getAttribute("translate") !== "yes") continue;
    if (node !== element) {
      if (!isTranslated(node)) found.push(node.data.trim());
    } else for (const name of attributes)
      if (node.getAttribute(name) && !isTranslated(node, name))
        found.push(`${name}=${node.getAttribute(name)}`);
  }
  return [...new Set(found)];
}"""
NOT_TRANSLATED = {
    "Tuneserve",
    "curl",
    "YAML",
    "Python",
    "openapi.json",
    "title=node 1",
    "aria-label=node 1",
    "placeholder=epochs: 3\nlearning_rate: 0.0001",
}
"""What is the same in all languages, but no text of the catalogue."""
COUNT_CHANGES_JS = """() => {
  window.numChanges = 0;
  new MutationObserver((records) => { window.numChanges += records.length; }).observe(
    document.body, {childList: true, characterData: true, subtree: true, attributes: true});
}"""


@pytest.fixture(scope="module")
def stub() -> StubApi:
    """Return a stub whose users have chosen words of the page as names."""
    stub = StubApi()
    progress = {"step": 12, "num_steps": 40, "loss": 3.0, "tokens_per_s": 10.0, "remaining_s": 75.0}
    result = {"fine_tuned_model": "base-tuned", "finished_at": 1_700_000_100, "progress": progress}
    training = {"epochs": 3, "learning_rate": 1e-3, "precision": "bf16", "seed": 1}
    stub.add_job("ftjob-1", "queued", waiting_for="number 2 in the queue", started_at=None)
    stub.add_job("ftjob-2", "failed", error={"message": "Checkpoints"})
    stub.add_job("ftjob-3", "succeeded", training=training, **result)
    stub.add_job("ftjob-4", "running", user_provided_suffix="Running", progress=progress)
    stub.jobs["ftjob-4"]["training_filename"] = "Loss"
    stub.add_job("ftjob-5", "running", training={**training, "epochs": 2}, progress=progress)
    stub.add_event("ftjob-5", "Models")
    for job in ("ftjob-3", "ftjob-5"):
        stub.runs.metrics[job] = make_metrics(12, 40)
        stub.runs.checkpoints[job] = [make_checkpoint(job, 10, 1.2), make_checkpoint(job, 5, 1.5)]
    stub.evaluations["ftjob-3"] = [
        {
            "step": 10,
            "loss": 1.0,
            "metrics": {"accuracy": 0.5, "f1": 0.5},
            "confusion_matrix": {"labels": ["Text", "Data"], "counts": [[1, 2], [3, 4]]},
        }
    ]
    add_sample_evaluations(stub.evaluations_of_models)
    stub.hub.install, stub.hub.push = ["Data/*"], ["Runs/*"]
    error = {"status": 404, "message": "Models", "code": None}
    stub.hub.add("install", "failed", error=error, model="Loss")
    stub.hub.add("push", "succeeded", url="https://127.0.0.1:9/Chat")
    for step in ("listing", "downloading", "checking", "uploading"):
        stub.hub.add("install", "running", step=step, bytes=1_500_000, total_bytes=3_000_000)
    stub.runs.cards |= dict.fromkeys(("base", "base-tuned", "Chat"), CARD)
    stub.models.append({"id": "Chat", "object": "model", "aliases": ["Data"], "base": False})
    stub.files.append({**stub.files[0], "id": "file-2", "filename": "Runs"})
    stub.rows.rows["file-2"] = [{"prompt": "Question", "completion": "Answer"}]
    return stub


@pytest.fixture(scope="module")
def address(stub: StubApi) -> Iterator[str]:
    app = build_stub(stub)

    @app.get("/v1/models/{model_id}/lineage")
    def get_lineage(model_id: str) -> dict[str, Any]:
        return {"spec": {"epochs": 3}, "data": {"name": "Runs", "sha256": "ab", "num_rows": 12}}

    with LocalServer(app) as stub.url, serve_page(UiSettings(api_url=stub.url)) as url:
        yield url


def open_context(browser: Browser, locale: str = "en-US", width: int = 1280) -> BrowserContext:
    viewport: Any = {"width": width, "height": 800}
    context = browser.new_context(viewport=viewport, locale=locale)
    context.set_default_timeout(PATIENCE_MS)
    return context


@pytest.fixture(scope="module")
def german(browser: Browser, address: str) -> Iterator[Page]:
    """A page whose visitor has chosen German, while the browser is English, and so is Gradio."""
    context = open_context(browser)
    page = context.new_page()
    page.goto(f"{address}/nonsense")
    page.select_option("#language", "de")
    expect(page.locator("html")).to_have_attribute("lang", "de")
    yield page
    context.close()


def visit(page: Page, address: str, path: str, ready: str = "") -> Page:
    """Open a page, and wait until it is complete."""
    page.goto(f"{address}{path}")
    shown = page.locator(ready or READY.get(path) or READY[path.partition("?")[0]]).first
    expect(shown).to_be_visible(timeout=PATIENCE_MS)
    page.wait_for_function("document.documentElement.lang === tuneserveLanguage.wanted()")
    return page


def list_untranslated(page: Page) -> list[str]:
    """List what is shown in English, once all that changed has been translated."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")
    found = [text for text in page.evaluate(UNTRANSLATED_JS) if text not in NOT_TRANSLATED]
    return [text for text in found if not re.fullmatch(r"[\d./]+s", text)]  # Gradio's clock


@pytest.mark.parametrize(
    ("path", "ready"),
    [
        *((path, "") for path in READY),
        ("/runs?run=ftjob-3", "#run-settings table"),
        ("/runs?run=ftjob-4", "#run-status"),
        ("/runs?run=ftjob-5", "#run-events li"),
        ("/runs?compare=ftjob-3,ftjob-5", "#compare-settings table"),
        ("/models?model=base-tuned", ".ts-lineage"),
    ],
)
def test_page_has_all_texts_in_german(german: Page, address: str, path: str, ready: str) -> None:
    visit(german, address, path, ready)
    german.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    expect(german.locator("html")).to_have_attribute("lang", "de")
    assert list_untranslated(german) == []


def test_settings_and_data_are_in_german(german: Page, address: str) -> None:
    visit(german, address, "/")
    german.locator("#more-settings summary").first.click()
    expect(german.locator("#setting-precision")).to_contain_text("Rechengenauigkeit")
    german.locator("#settings-export summary").first.click()
    expect(german.locator("#import-button")).to_be_visible()
    expect(find_chosen(german, "task")).to_have_text("Text erzeugen")
    expect(german.locator("#task select")).to_have_value("causal_lm")
    expect(find_chosen(german, "data-file")).to_have_text("Das mitgelieferte Handbuch · 10 Bytes")
    german.locator("#setting-epochs input").fill("2")
    expect(german.locator("#settings-num-changed")).to_have_text("(1)")
    german.locator("#setting-epochs input").fill("0")
    expect(german.locator("#setting-epochs .ts-field-error")).to_be_visible()
    german.locator("#setting-epochs input").fill("3")
    expect(german.locator("#start-reason")).to_be_hidden()
    for name, ready in (("Alle Zeilen", "#row-search"), ("Längen und Fehler", "#row-statistics")):
        german.get_by_role("tab", name=name).click()
        expect(german.locator(f"{ready}:visible")).to_be_visible()
        assert list_untranslated(german) == []


def test_toast_and_later_change_are_translated(german: Page, address: str) -> None:
    visit(german, address, "/chat")
    german.locator("#chat-checkpoints").click()
    toast = german.locator(".toast-body").first
    expect(toast).to_contain_text("Checkpoint")
    expect(toast).to_contain_text("am Ende des Menüs ergänzt.")
    field = german.locator("#chat-temperature input[type=number]")
    field.fill("7")
    field.press("Tab")
    expect(german.locator("#chat-temperature")).to_contain_text("eine Zahl von 0 bis 2 eingeben.")
    field.fill("0")
    field.press("Tab")
    expect(german.locator("#chat-temperature")).to_contain_text("wählt immer das")
    assert list_untranslated(german) == []


def test_names_and_words_of_users_are_not_translated(german: Page, address: str) -> None:
    visit(german, address, "/runs", "#run-list tbody tr >> nth=4")
    row = german.locator("tr[data-run=ftjob-4]")
    expect(row.locator("th")).to_have_text("Running")
    expect(row.locator(".ts-data")).to_have_text("Loss")
    expect(row.locator(".ts-badge")).to_have_text("Läuft")
    expect(german.locator("tr[data-run=ftjob-5] th")).to_have_text("Fine-Tuning von base")
    visit(german, address, "/runs?run=ftjob-5", "#run-events li")
    expect(german.locator("#run-events li span")).to_have_text("Models")
    visit(german, address, "/runs?run=ftjob-3", ".ts-confusion")
    assert german.locator(".ts-confusion tbody th").all_inner_texts() == ["Text", "Data"]
    visit(german, address, "/models", ".ts-models tbody tr")
    expect(german.get_by_role("link", name="Chat", exact=True)).to_have_count(2)  # and the page
    visit(german, address, "/models?model=Chat", "#model-card p")
    expect(german.locator("#models-view h2")).to_have_text("Chat")
    expect(german.locator("#model-card")).to_have_text("Modellkarte\n\nModels\n\nRunning")
    visit(german, address, "/")
    names = german.locator("#base-model option")
    expect(names.filter(has_text=re.compile("^Chat$"))).to_have_count(1)
    choose(german, "data-file", "Runs · 10 Bytes")
    german.get_by_role("tab", name="Alle Zeilen").click()
    expect(german.locator("#file-rows dd")).to_have_text(["Question", "Answer"])
    german.get_by_role("tab", name="Erste Zeilen als Tokens").click()
    expect(german.locator("#preview .ts-tokens")).to_have_text(["QuestionAnswer"])


def test_answer_of_model_is_not_translated(german: Page, address: str) -> None:
    visit(german, address, "/chat")
    expect(german.locator("#chat-model input")).to_have_value("latest → base-tuned")
    german.fill("#chat-input textarea", "Models")
    german.click("#chat-send")
    note = german.locator("#chat-history .ts-answered")
    expect(note).to_contain_text("Antwort von")
    expect(german.locator("#chat-history [data-testid=user]")).to_have_text("Models")
    assert list_untranslated(german) == []


def test_choice_stays_and_chinese_is_shown(browser: Browser, address: str) -> None:
    context = open_context(browser)
    page = visit(context.new_page(), address, "/runs")
    page.select_option("#language", "zh")
    expect(page.locator("#run-list-title")).to_have_text("运行")
    assert page.title() == "运行 · Tuneserve"
    page.reload()
    expect(page.locator("#run-list-title")).to_have_text("运行")
    expect(page.locator("#language")).to_have_value("zh")
    visit(page, address, "/api")
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    expect(page.get_by_role("link", name="微调", exact=True).first).to_be_visible()
    page.select_option("#language", "en")
    expect(page.get_by_role("link", name="Fine-tune", exact=True)).to_be_visible()
    expect(page.locator("html")).to_have_attribute("lang", "en")
    page.select_option("#language", "de")
    expect(page.get_by_role("navigation").first).to_contain_text("Läufe")
    context.close()


@pytest.mark.parametrize(("locale", "tag"), [("de-AT", "de"), ("zh-CN", "zh"), ("fr-FR", "en")])
def test_language_of_browser_is_the_first_choice(
    browser: Browser, address: str, locale: str, tag: str
) -> None:
    context = open_context(browser, locale)
    page = visit(context.new_page(), address, "/nonsense")
    expect(page.locator("html")).to_have_attribute("lang", tag)
    expect(page.locator("#language")).to_have_value(tag)
    context.close()


def test_english_loads_no_language(browser: Browser, address: str) -> None:
    context = open_context(browser)
    page = context.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    visit(page, address, "/runs")
    assert any("/page-assets/translate.js" in url for url in requested)
    assert [url for url in requested if ".json" in url and "page-assets" in url] == []
    context.close()


def test_language_is_loaded_once(browser: Browser, address: str) -> None:
    context = open_context(browser, "de-DE")
    page = context.new_page()
    answers: list[Any] = []
    page.on("response", lambda answer: answers.append(answer) if "de.json" in answer.url else None)
    for path in ("/runs", "/models"):
        visit(page, address, path)
        expect(page.locator("html")).to_have_attribute("lang", "de")
    assert [answer.status for answer in answers] == [200, 200]
    assert "immutable" in answers[0].headers["cache-control"]
    timing = page.evaluate(
        "performance.getEntriesByType('resource').find(one => one.name.includes('de.json'))"
        ".transferSize"
    )
    assert timing == 0  # from the browser's cache
    context.close()


def test_unchanged_page_and_followed_log_cause_no_work(german: Page, address: str) -> None:
    visit(german, address, "/runs?run=ftjob-5", "#run-events li")
    german.locator("#run-log summary").click()
    expect(german.locator("#log-text")).to_contain_text("log of ftjob-5")
    german.evaluate(COUNT_CHANGES_JS)
    german.evaluate(
        """async () => {
          const log = document.querySelector("#log-text");
          for (let n = 0; n < 50; n++) {
            log.append("Running\\n");
            await new Promise(requestAnimationFrame);
          }
        }"""
    )
    shown = german.locator("#log-text").inner_text()
    assert shown.count("Running") == 50
    wait_until(lambda: german.evaluate("window.numChanges") >= 50, 10, "the changes are counted")
    assert german.evaluate("window.numChanges") < 70  # a duration counts too


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", ["/", "/models"])
def test_german_page_fits_and_has_no_violation(
    browser: Browser, address: str, path: str, width: int
) -> None:
    context = open_context(browser, "de-DE", width)
    page = visit(context.new_page(), address, path)
    expect(page.locator("html")).to_have_attribute("lang", "de")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator(".ts-header").bounding_box()
    assert box is not None
    assert box["height"] < 120
    page.wait_for_function(IS_STEADY_JS)
    for rules in ({"type": "tag", "values": RULES}, {"type": "rule", "values": MORE_RULES}):
        found = Axe().run(page, {}, {"runOnly": rules}).response["violations"]
        assert [describe(violation) for violation in found] == []
    context.close()
