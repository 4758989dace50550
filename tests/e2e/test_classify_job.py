"""A fine-tuning job over HTTP that makes a text classifier of an encoder."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.store.model_store import ModelStore
from storage.layout import open_storage
from tests.e2e.conftest import Application
from tests.tiny_encoder import build_tiny_encoder
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def read_aliases(http: httpx.Client) -> dict[str, str]:
    """Return the model of each alias."""
    return {one["id"]: one["model"] for one in http.get("/v1/aliases").json()["data"]}


def test_job_fine_tunes_an_encoder_and_its_model_classifies(
    application: Application, http: httpx.Client, tmp_path: Path
) -> None:
    store = ModelStore(open_storage(application.storage))
    store.install(build_tiny_encoder(tmp_path / "encoder"), "job-encoder")
    labels = {"good": "positive", "bad": "negative"}
    rows = [
        {"text": f"the {noun} was {'very ' * number}{word}", "label": label}
        for noun in ("film", "book")
        for number in range(4)
        for word, label in labels.items()
    ]
    classes = set(labels.values())
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    file = application.client.files.create(file=("rows.jsonl", content), purpose="fine-tune")
    checked = application.client.files.wait_for_processing(file.id)
    assert checked.status == "processed"
    counts: Any = checked.to_dict()["check"]
    assert counts["label_counts"] == {"negative": 8, "positive": 8}
    settings = {
        "learning_rate": 0.005,
        "epochs": 6,
        "num_workers": 1,
        "micro_batch_size": 2,
    }
    body = {"model": "job-encoder", "training_file": file.id, "suffix": "feeling"}
    other = {"task": "causal_lm"}
    refused = http.post("/v1/fine_tuning/jobs", json={**body, "training": other})
    assert refused.json()["error"]["param"] == "model"
    job = http.post("/v1/fine_tuning/jobs", json={**body, "training": settings}).json()

    latest = read_aliases(http)["latest"]

    def find_end() -> dict[str, Any] | None:
        found: dict[str, Any] = http.get(f"/v1/fine_tuning/jobs/{job['id']}").json()
        return found if found["status"] in ("succeeded", "failed", "cancelled") else None

    ended = wait_until(find_end, 180, "the job ends")
    assert ended["status"] == "succeeded", ended
    assert ended["training"]["task"] == "sequence_classification"  # that of an encoder by default
    aliases = read_aliases(http)
    assert aliases["feeling"] == ended["fine_tuned_model"]
    assert aliases["latest"] == latest
    texts = ["the film was good", "the book was bad"]
    answer = http.post("/v1/classify", json={"model": "feeling", "input": texts})
    assert answer.headers["x-run-id"] == job["id"]
    found = [one["labels"] for one in answer.json()["data"]]
    assert [{label["label"] for label in labels} for labels in found] == [classes] * 2
