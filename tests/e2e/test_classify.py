"""`POST /v1/classify` of the running application, with small classifiers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from serving.store.model_store import ModelStore
from storage.layout import open_storage
from tests.e2e.conftest import Application
from tests.tiny_encoder import build_tiny_encoder
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
