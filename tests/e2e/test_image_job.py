"""A job over HTTP on an archive of images, and its model over HTTP and on the page."""

import base64
import io
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import BrowserContext, expect

from serving.store.model_store import ModelStore
from storage.layout import open_storage
from tests.e2e.conftest import Application
from tests.e2e.test_classify_job import read_aliases
from tests.e2e.test_page import PATIENCE_MS, browser, context
from tests.tiny_vision import COLOURS, build_tiny_vit, draw_shape, write_image_folder
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

__all__ = ["browser", "context"]


def pack_images(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in sorted(folder.rglob("*.*")):
            archive.write(file, f"{folder.name}/{file.relative_to(folder)}")
    return buffer.getvalue()


def encode(colour: str, seed: int) -> bytes:
    buffer = io.BytesIO()
    draw_shape(colour, seed).save(buffer, "PNG")
    return buffer.getvalue()


def test_job_fine_tunes_on_an_archive_and_its_model_classifies(
    context: BrowserContext, application: Application, http: httpx.Client, tmp_path: Path
) -> None:
    ModelStore(open_storage(application.storage)).install(
        build_tiny_vit(tmp_path / "vit"), "job-vit"
    )
    packed = pack_images(write_image_folder(tmp_path / "shapes", 12))
    file = application.client.files.create(file=("shapes.zip", packed), purpose="fine-tune")
    checked = application.client.files.wait_for_processing(file.id)
    assert checked.status == "processed", checked
    found: Any = checked.to_dict()["check"]
    assert (found["task"], found["num_rows"]) == ("image_classification", 36)
    assert found["label_counts"] == {"blue": 12, "green": 12, "red": 12}
    settings = {
        "task": "image_classification",
        "task_settings": {"augmentation": "none"},
        "strategy": "ddp",
        "learning_rate": 0.003,
        "epochs": 5,
        "num_workers": 1,
        "micro_batch_size": 4,
        "validation_fraction": 0.2,
    }
    latest = read_aliases(http)["latest"]
    body = {"model": "job-vit", "training_file": file.id, "suffix": "shapes", "training": settings}
    job = http.post("/v1/fine_tuning/jobs", json=body).json()
    assert "id" in job, job

    def find_end() -> dict[str, Any] | None:
        found: dict[str, Any] = http.get(f"/v1/fine_tuning/jobs/{job['id']}").json()
        return found if found["status"] in ("succeeded", "failed", "cancelled") else None

    ended = wait_until(find_end, 400, "the job ends")
    assert ended["status"] == "succeeded", ended
    aliases = read_aliases(http)
    assert aliases["shapes"] == ended["fine_tuned_model"]
    assert aliases["latest"] == latest
    images = {colour: encode(colour, 9000) for colour in COLOURS}
    files = [("images", (f"{colour}.png", image)) for colour, image in images.items()]
    by_form = http.post("/v1/classify", data={"model": "shapes"}, files=files)
    coded = [base64.b64encode(image).decode() for image in images.values()]
    by_json = http.post("/v1/classify", json={"model": "shapes", "images": coded})
    for answer in (by_form, by_json):
        assert answer.headers["x-run-id"] == job["id"]
        labels = [one["labels"][0]["label"] for one in answer.json()["data"]]
        assert labels == list(COLOURS)
    assert by_form.json()["data"] == by_json.json()["data"]
    check_page(context, f"{application.url}/ui/classify?model=shapes", images, tmp_path)


def check_page(
    context: BrowserContext, address: str, images: dict[str, bytes], folder: Path
) -> None:
    """Check that the page shows an uploaded image with its labels."""
    page = context.new_page()
    page.goto(address)
    for colour, image in images.items():
        file = folder / f"{colour}.png"
        file.write_bytes(image)
        page.set_input_files("input[type=file]", file)
        label = page.locator("#classify-result .ts-labels li").first
        expect(label).to_contain_text(colour, timeout=PATIENCE_MS)
        width = Image.open(io.BytesIO(image)).width
        shown = page.locator("#classify-result img")
        expect(shown).to_have_js_property("naturalWidth", width, timeout=PATIENCE_MS)
    page.close()
