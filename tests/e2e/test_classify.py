"""`/v1/classify` and `/v1/embeddings` of the running application, with small models."""

import base64
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import httpx
import pytest
import torch
from openai import BadRequestError
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    AutoTokenizer,
)

from serving.store.model_store import ModelStore
from storage.layout import open_storage
from tests.e2e.conftest import Application
from tests.tiny_encoder import build_tiny_encoder
from tests.tiny_vision import build_tiny_vit, draw_shape
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def store(application: Application, tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    """The store of the application, with two classifiers and an alias of the first."""
    store = ModelStore(open_storage(application.storage))
    folder = tmp_path_factory.mktemp("classifiers")
    for name, num_labels in (("mood-1", 2), ("mood-2", 3)):
        store.add(build_tiny_encoder(folder / name, num_labels=num_labels), name)
    store.point_alias("mood", "mood-1")
    store.install(build_tiny_vit(folder / "shapes"), "stored-vit")
    store.install(build_tiny_encoder(folder / "encoder"), "stored-encoder")
    return store


@pytest.fixture(scope="module")
def client(application: Application, store: ModelStore) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=application.url, timeout=120) as client:
        yield client


def classify(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/classify", json={"model": "mood-1", **fields})


def test_texts_and_pairs_are_classified(client: httpx.Client) -> None:
    single = classify(client, model="mood", input="the film was good")
    assert single.status_code == 200, single.text
    assert single.headers["x-model-id"] == "mood-1"
    answer = single.json()
    assert (answer["object"], answer["model"]) == ("list", "mood-1")
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    (found,) = answer["data"]
    assert (found["object"], found["index"]) == ("classification", 0)
    scores = [label["score"] for label in found["labels"]]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1)
    batch = classify(client, input=["bad", "the film was good"], top_k=1).json()["data"]
    assert [len(one["labels"]) for one in batch] == [1, 1]
    assert batch[1]["labels"][0]["score"] == pytest.approx(scores[0], abs=1e-5)
    pairs = classify(client, input=[["the film was good", "really"]]).json()
    assert pairs["usage"]["prompt_tokens"] == 8


def test_model_of_the_other_kind_is_refused(client: httpx.Client) -> None:
    refused = classify(client, model="latest", input="good")
    assert refused.status_code == 400
    assert (
        "is a language model; use POST /v1/chat/completions" in refused.json()["error"]["message"]
    )
    chat = {"model": "mood", "messages": [{"role": "user", "content": "good"}]}
    refused = client.post("/v1/chat/completions", json=chat)
    assert refused.status_code == 400
    assert refused.json()["error"] == {
        "message": "model 'mood-1' is a text classifier; use POST /v1/classify",
        "type": "invalid_request_error",
        "param": "model",
        "code": "wrong_task",
    }
    refused = client.put("/v1/aliases/latest", json={"model": "mood-1"})
    assert refused.status_code == 400
    models = {one["id"]: one["task"] for one in client.get("/v1/models").json()["data"]}
    assert models["mood-1"] == "sequence_classification"
    assert models["tuneserve-demo"] == "causal_lm"


def test_invalid_inputs_are_refused(client: httpx.Client) -> None:
    long = classify(client, input="good " * 100)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert classify(client, input="good " * 100, truncate=True).status_code == 200
    many = classify(client, input=["good"] * 65)
    assert (many.status_code, many.json()["error"]["param"]) == (400, "input")
    assert classify(client, model="nothing", input="good").status_code == 404


def test_alias_is_handed_over_under_load(client: httpx.Client, store: ModelStore) -> None:
    def ask(number: int) -> tuple[int, str]:
        answer = classify(client, model="mood", input=f"the film was good {number}")
        return answer.status_code, answer.json().get("model", answer.text)

    seen: list[tuple[int, str]] = []
    with ThreadPoolExecutor(4) as clients:
        seen += clients.map(ask, range(20))
        assert set(seen) == {(200, "mood-1")}
        store.point_alias("mood", "mood-2")

        def has_moved() -> bool:
            seen.extend(clients.map(ask, range(20)))
            return seen[-1] == (200, "mood-2")

        wait_until(has_moved, TIMEOUT_S, "the new model answers")
    assert {status for status, _ in seen} == {200}


def test_images_are_classified_like_plain_transformers(
    client: httpx.Client, store: ModelStore
) -> None:
    images = [draw_shape(colour, number) for number, colour in enumerate(("red", "blue") * 4)]
    path = store.get("stored-vit").path
    processor = AutoImageProcessor.from_pretrained(path, backend="pil")
    with torch.no_grad():
        model = AutoModelForImageClassification.from_pretrained(path)
        expected = model(**processor(images, return_tensors="pt")).logits.softmax(-1)
    encoded = []
    for image in images:
        buffer = BytesIO()
        image.save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    coded = [base64.b64encode(one).decode() for one in encoded]
    coded[0] = f"data:image/png;base64,{coded[0]}"
    files = [("images", (f"{number}.png", one)) for number, one in enumerate(encoded)]
    by_json = client.post("/v1/classify", json={"model": "stored-vit", "images": coded, "top_k": 2})
    by_form = client.post("/v1/classify", data={"model": "stored-vit"}, files=files)
    for answer in (by_json, by_form):
        assert answer.status_code == 200, answer.text
        for row, one in zip(expected.tolist(), answer.json()["data"], strict=True):
            found = {label["label"]: label["score"] for label in one["labels"]}
            assert found == pytest.approx({"LABEL_0": row[0], "LABEL_1": row[1]}, abs=1e-5)


def test_unusable_images_are_refused(client: httpx.Client) -> None:
    files = [("images", ("notes.txt", b"no image"))]
    by_form = client.post("/v1/classify", data={"model": "stored-vit"}, files=files)
    assert by_form.status_code == 400
    assert by_form.json()["error"]["message"].startswith("'notes.txt' is not an image, expected")
    by_json = client.post("/v1/classify", json={"model": "stored-vit", "images": ["YWJj"]})
    assert by_json.json()["error"] == {
        "message": "image 0 is not an image, expected one of JPEG, PNG, WEBP, BMP, GIF",
        "type": "invalid_request_error",
        "param": "images",
        "code": "invalid_image",
    }
    texts = client.post("/v1/classify", json={"model": "stored-vit", "input": "a"})
    assert "send images as 'images'" in texts.json()["error"]["message"]


def test_openai_client_gets_embeddings(application: Application, store: ModelStore) -> None:
    texts = ["the film was good", "bad"]
    path = store.get("stored-encoder").path
    model, tokenizer = AutoModel.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    embeddings = application.client.embeddings
    for encoding_format in ("float", "base64", None):
        chosen: Any = {"encoding_format": encoding_format} if encoding_format else {}
        answer = embeddings.create(model="stored-encoder", input=texts, **chosen)
        assert answer.model == "stored-encoder"
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == 6 + 3
        for text, one in zip(texts, answer.data, strict=True):
            vector: Any = one.embedding
            if encoding_format == "base64":
                vector = struct.unpack("<32f", base64.b64decode(vector))
            with torch.no_grad():
                hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            expected = torch.nn.functional.normalize(hidden.mean(0), dim=0).tolist()
            assert vector == pytest.approx(expected, abs=1e-5)
    cls = embeddings.create(
        model="stored-encoder", input=[[2, 5, 3]], dimensions=32, extra_body={"pooling": "cls"}
    )
    assert len(cls.data[0].embedding) == 32
    with pytest.raises(BadRequestError, match="dimensions is 16, and vectors of the model have 32"):
        embeddings.create(model="stored-encoder", input="bad", dimensions=16)


def test_application_is_ready_with_the_classifier(client: httpx.Client) -> None:
    assert client.get("/readyz").json()["checks"]["classifier"] == "ok"
