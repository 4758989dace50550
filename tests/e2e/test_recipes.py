"""Each task and each strategy, from the command line, over the API and on the page.

The other tests of this folder have the causal language model with ZeRO on all three; text
classifiers with ZeRO over the API and with ddp on the page; and image classifiers with ddp over the
API.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from serving.store.model_store import ModelStore
from storage.layout import open_storage
from tests.e2e.conftest import Application
from tests.e2e.fine_tune_menus import choose, enter, find_chosen, select
from tests.e2e.test_classify_page import write_rows
from tests.e2e.test_image_job import pack_images
from tests.e2e.test_page import PATIENCE_MS, RUN_TIMEOUT_MS, browser, context
from tests.tiny_encoder import build_tiny_encoder
from tests.tiny_vision import build_tiny_vit, draw_shape, write_image_folder
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

__all__ = ["browser", "context"]

CHAT_MODEL, TEXT_MODEL, IMAGE_MODEL = "tuneserve-demo", "recipe-bert", "recipe-vit"
CLI_TIMEOUT_S = 300
PIPELINE: Mapping[str, object] = {"strategy": "pipeline", "num_workers": 2, "epochs": 1}
IMAGE_SETTINGS: Mapping[str, object] = {
    "task_settings": {"augmentation": "none"},
    "learning_rate": 0.003,
    "epochs": 5,
    "micro_batch_size": 4,
}
TEXT_SETTINGS: Mapping[str, object] = {
    "learning_rate": 0.005,
    "epochs": 8,
    "num_workers": 1,
    "micro_batch_size": 2,
}


@pytest.fixture(scope="module")
def inputs(application: Application, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows for each task; base models for them are in the store."""
    folder = tmp_path_factory.mktemp("recipes")
    store = ModelStore(open_storage(application.storage))
    store.install(build_tiny_encoder(folder / "bert"), TEXT_MODEL)
    store.install(build_tiny_vit(folder / "vit"), IMAGE_MODEL)
    write_rows(folder / "reviews.csv")
    write_image_folder(folder / "shapes", 12)
    (folder / "shapes.zip").write_bytes(pack_images(folder / "shapes"))
    draw_shape("green", 9000).save(folder / "green.png")
    rows = [{"prompt": f"What is {one}?", "completion": f"It is {one}."} for one in range(16)]
    (folder / "chat.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def call_command(application: Application, *arguments: object) -> str:
    """Run `tuneserve` as a process, and return what it prints."""
    command = [Path(sys.executable).parent / "tuneserve", *arguments, "--url", application.url]
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=CLI_TIMEOUT_S * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def fine_tune_by_command(
    application: Application, rows: Path, model: str, settings: Mapping[str, object], *more: str
) -> str:
    """Create a job and watch it until it succeeds; return the id of the new model."""
    options = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    created = call_command(
        application, "jobs", "create", rows, "--model", model, *more, *options, "--json"
    )
    job_id = json.loads(created)["id"]
    watched = call_command(application, "jobs", "watch", job_id)
    job = json.loads(call_command(application, "jobs", "show", job_id, "--json"))
    assert job["training"] == {**job["training"], **settings}
    made: str = job["fine_tuned_model"]
    assert f"{made} is ready" in watched
    return made


def test_command_line_fine_tunes_text_classifier_with_ddp(
    application: Application, inputs: Path
) -> None:
    settings = {**TEXT_SETTINGS, "strategy": "ddp"}
    made = fine_tune_by_command(
        application, inputs / "reviews.csv", TEXT_MODEL, settings, "--task=sequence_classification"
    )
    text = "the film was very bad"
    answer = json.loads(call_command(application, "classify", "--model", made, text, "--json"))
    assert answer["data"][0]["labels"][0]["label"] == "negative"


def test_command_line_fine_tunes_image_classifier_with_zero(
    application: Application, inputs: Path
) -> None:
    settings = {**IMAGE_SETTINGS, "strategy": "zero", "num_workers": 2}
    made = fine_tune_by_command(
        application, inputs / "shapes", IMAGE_MODEL, settings, "--task=image_classification"
    )
    image = inputs / "green.png"
    shown = call_command(application, "classify", "--model", made, "--image", image, "--json")
    assert json.loads(shown)["data"][0]["labels"][0]["label"] == "green"


def test_command_line_fine_tunes_with_pipeline(application: Application, inputs: Path) -> None:
    made = fine_tune_by_command(
        application, inputs / "chat.jsonl", CHAT_MODEL, PIPELINE, "--task=causal_lm"
    )
    answer = call_command(application, "chat", "What is 3?", "--model", made, "--json")
    assert json.loads(answer)["model"] == made


@pytest.mark.parametrize("settings", [PIPELINE, {"strategy": "ddp", "epochs": 1}])
def test_api_fine_tunes_language_model(
    settings: Mapping[str, object], application: Application, inputs: Path
) -> None:
    api = application.client
    file = api.files.create(file=inputs / "chat.jsonl", purpose="fine-tune")
    job = api.fine_tuning.jobs.create(
        model=CHAT_MODEL, training_file=file.id, extra_body={"training": settings}
    )

    def find_end() -> Any:
        found = api.fine_tuning.jobs.retrieve(job.id)
        return found if found.status in ("succeeded", "failed", "cancelled") else None

    ended = wait_until(find_end, 300, "the job ends")
    assert ended.status == "succeeded", ended.error
    assert ended.to_dict()["training"]["strategy"] == settings["strategy"]
    answer = api.chat.completions.create(
        model=ended.fine_tuned_model, messages=[{"role": "user", "content": "What is 3?"}]
    )
    assert answer.model == ended.fine_tuned_model


def start_on_page(page: Page, rows: Path, task: str, model: str, name: str) -> None:
    """Choose rows and a model; the settings are those of the task then."""
    expect(page.locator("#preview mark.ts-learned").nth(1)).to_be_visible(timeout=PATIENCE_MS)
    page.set_input_files("input[type=file]", rows)
    expect(find_chosen(page, "data-file")).to_have_text(
        re.compile(re.escape(rows.name)), timeout=PATIENCE_MS
    )
    choose(page, "base-model", f"{model} (base)")
    expect(find_chosen(page, "task")).to_have_text(task, timeout=PATIENCE_MS)
    enter(page, "run-name", name)
    page.click("#more-settings summary")


def finish_on_page(page: Page) -> str:
    """Start the run, wait until it has succeeded, and return the id of its model."""
    page.click("#start-button")
    page.wait_for_url("**/ui/runs?run=*")
    expect(page.locator("#run-status")).to_have_text("Succeeded", timeout=RUN_TIMEOUT_MS)
    return page.locator("#run-detail .ts-result code").inner_text()


def test_page_fine_tunes_image_classifier_with_zero(
    context: BrowserContext, application: Application, inputs: Path
) -> None:
    page = context.new_page()
    page.goto(f"{application.url}/ui/")
    enter(page, "setting-epochs", "5")  # stays when the fields are those of another task
    start_on_page(page, inputs / "shapes.zip", "Classify images", IMAGE_MODEL, "colours")
    expect(page.locator("#setting-learning-rate input")).to_have_value("0.0001")
    select(page, "augmentation", "none")
    expect(page.locator("#setting-epochs input")).to_have_value("5")
    enter(page, "setting-learning-rate", "0.003")
    enter(page, "setting-micro-batch-size", "4")
    expect(page.locator("#setting-strategy select")).to_have_value('"zero"')
    made = finish_on_page(page)
    page.click("#classify-with-it")
    expect(page.locator("#classify-model input")).to_have_value(made, timeout=PATIENCE_MS)
    page.set_input_files("input[type=file]", inputs / "green.png")
    label = page.locator("#classify-result .ts-labels li").first
    expect(label).to_contain_text("green", timeout=PATIENCE_MS)


def test_page_fine_tunes_with_pipeline(
    context: BrowserContext, application: Application, inputs: Path
) -> None:
    page = context.new_page()
    page.goto(f"{application.url}/ui/")
    start_on_page(page, inputs / "chat.jsonl", "Generate text", CHAT_MODEL, "stages")
    enter(page, "setting-epochs", "1")
    enter(page, "setting-num-workers", "2")
    select(page, "strategy", "pipeline")
    made = finish_on_page(page)
    page.click("#chat-with-it")
    page.wait_for_url("**/ui/chat?model=*")
    expect(page.locator("#chat-model input")).to_have_value(made, timeout=PATIENCE_MS)
