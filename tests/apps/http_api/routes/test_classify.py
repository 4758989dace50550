import base64
import struct
from io import BytesIO
from pathlib import Path

import httpx
import pytest

from apps.http_api.dependencies import Services
from apps.middleware.body_limit import MAX_IMAGES_BYTES
from tests.tiny_encoder import build_tiny_encoder

pytestmark = pytest.mark.anyio


@pytest.fixture
def models(services: Services, tmp_path: Path) -> None:
    """Add the classifier 'mood' and the encoder 'encoder'."""
    services.models.add(build_tiny_encoder(tmp_path / "mood", num_labels=2), "mood")
    services.models.add(build_tiny_encoder(tmp_path / "encoder"), "encoder")


@pytest.mark.usefixtures("models")
async def test_images_are_base64_or_files(client: httpx.AsyncClient) -> None:
    coded = base64.b64encode(b"x" * 10).decode()
    body = {"model": "mood", "images": [coded, f"data:image/png;base64,{coded}"]}
    answer = (await client.post("/v1/classify", json=body)).json()
    scores = [one["labels"][0]["score"] for one in answer["data"]]
    assert scores == [0.1, 0.1]
    files = [("images", ("a.png", BytesIO(b"y" * 20))), ("images", ("b.png", BytesIO(b"z" * 30)))]
    form = await client.post("/v1/classify", data={"model": "mood", "top_k": "2"}, files=files)
    assert form.status_code == 200, form.text
    assert [one["labels"][0]["score"] for one in form.json()["data"]] == [0.2, 0.3]


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        ({"model": "mood", "input": "a"}, "images", "the form has an unexpected part 'input'"),
        ({"model": "mood"}, "image", "the form has an unexpected part 'image'; expected files "),
        ({"model": "mood", "top_k": "many"}, "images", "'top_k': "),
        ({"model": "mood", "top_k": "9" * 5_000}, "images", "'top_k': "),
        ({"model": "mood", "top_k": "0"}, "images", "'top_k': "),
        ({}, "images", "'model' is required"),
    ],
)
async def test_invalid_form_is_refused(
    client: httpx.AsyncClient, data: dict[str, str], name: str, message: str
) -> None:
    files = {name: ("a.png", BytesIO(b"y"))}
    answer = await client.post("/v1/classify", data=data, files=files)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


@pytest.mark.usefixtures("models")
async def test_number_and_size_of_images_are_limited(client: httpx.AsyncClient) -> None:
    files = [("images", ("a.png", BytesIO(b"y")))] * 65
    answer = await client.post("/v1/classify", data={"model": "mood"}, files=files)
    assert answer.status_code == 400
    assert "64" in answer.json()["error"]["message"]
    large = {"images": ("a.png", BytesIO(b"y" * (MAX_IMAGES_BYTES + 1)))}
    answer = await client.post("/v1/classify", data={"model": "mood"}, files=large)
    assert answer.status_code == 413
    no_file = await client.post(
        "/v1/classify", data={"model": "mood"}, files={"model": (None, "mood")}
    )
    assert no_file.status_code == 400


@pytest.mark.usefixtures("models")
async def test_embeddings_are_numbers_or_base64(client: httpx.AsyncClient) -> None:
    body = {"model": "encoder", "input": ["abc", "ab"]}
    answer = await client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-model-id"] == "encoder"
    assert answer.json() == {
        "object": "list",
        "model": "encoder",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [3.0]},
            {"object": "embedding", "index": 1, "embedding": [2.0]},
        ],
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    tokens = {"model": "encoder", "input": [1, 2, 3, 4], "encoding_format": "base64"}
    (one,) = (await client.post("/v1/embeddings", json=tokens)).json()["data"]
    assert struct.unpack("<f", base64.b64decode(one["embedding"])) == (4.0,)


@pytest.mark.usefixtures("models")
async def test_model_of_another_kind_is_refused(client: httpx.AsyncClient) -> None:
    for path, model, message in (
        ("/v1/embeddings", "mood", "is a text classifier; use POST /v1/classify"),
        ("/v1/embeddings", "latest", "is a language model; use POST"),
        ("/v1/classify", "encoder", "is an encoder; use POST /v1/embeddings"),
    ):
        answer = await client.post(path, json={"model": model, "input": "a"})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "wrong_task"
        assert message in answer.json()["error"]["message"]
