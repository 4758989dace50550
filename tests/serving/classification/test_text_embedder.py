"""One loaded encoder, compared with plain transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from serving.classification.classifier import ClassifierReplica, ClassifierReplicaSettings
from serving.classification.embedding_request import parse_embedding_request
from serving.classification.text_embedder import TextEmbedder
from serving.classification.wire import EmbedCall
from serving.errors import EngineDeadError, InvalidRequestError
from serving.refusals import unwrap
from serving.store.import_process import ModelRefusedError
from serving.store.model_store import ModelStore
from serving.tasks.embedding import TASK
from storage import durable
from storage.layout import StorageLayout
from tests.tiny_encoder import build_tiny_encoder

TEXTS = ["the film was good", "bad", "the book was very very plain"]


def ask(given: Any, **fields: Any) -> Any:
    return parse_embedding_request({"model": "m", "input": given, **fields})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_encoder(tmp_path_factory.mktemp("encoder") / "encoder")


@pytest.fixture(scope="module")
def bare_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same encoder saved without its head, as sentence-transformers saves it."""
    bare = tmp_path_factory.mktemp("bare") / "bare"
    AutoModel.from_pretrained(folder).save_pretrained(bare)
    AutoTokenizer.from_pretrained(folder).save_pretrained(bare)
    (bare / "1_Pooling").mkdir()
    settings = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    durable.write_json(bare / "1_Pooling" / "config.json", settings)
    return bare


def embed_plainly(folder: Path, text: str, pooling: str) -> list[float]:
    model = AutoModel.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        (hidden,) = model(**tokens).last_hidden_state
    vector = hidden[0] if pooling == "cls" else hidden.mean(0)
    return (vector / vector.norm()).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_equal_plain_transformers(folder: Path, pooling: str) -> None:
    embedder = TextEmbedder.load(folder, TASK)
    found = embedder.predict(embedder.encode(ask(TEXTS, pooling=pooling)))
    for text, vector in zip(TEXTS, found, strict=True):
        assert vector == pytest.approx(embed_plainly(folder, text, pooling), abs=1e-5)
        assert sum(value * value for value in vector) == pytest.approx(1, abs=1e-5)


def test_mean_is_the_default_and_a_model_may_name_another(folder: Path, bare_folder: Path) -> None:
    for path, expected in ((folder, "mean"), (bare_folder, "cls")):
        embedder = TextEmbedder.load(path, TASK)
        (vector,) = embedder.predict(embedder.encode(ask(TEXTS[0])))
        assert vector == pytest.approx(embed_plainly(path, TEXTS[0], expected), abs=1e-5)


def test_tokens_are_taken_as_they_are(folder: Path) -> None:
    embedder = TextEmbedder.load(folder, TASK)
    ids = AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]
    texts = embedder.predict(embedder.encode(ask(TEXTS)))
    for expected, tokens in zip(texts, embedder.predict(embedder.encode(ask(ids))), strict=True):
        assert tokens == pytest.approx(expected, abs=1e-6)
    (alone,) = embedder.encode(ask(ids[0]))
    assert alone.num_tokens == len(ids[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[5, 1000]], r"input 0 has the token 1000; expected 0 to \d+, the model's vocabulary"),
        ([[5], [-1]], "input 1 has the token -1"),
        ([5] * 65, "input 0 has 65 tokens; expected at most 64"),
        ("good " * 100, "input 0 has 102 tokens; expected at most 64"),
    ],
)
def test_unusable_input_is_refused(folder: Path, given: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        TextEmbedder.load(folder, TASK).encode(ask(given))


def test_long_input_is_truncated(folder: Path) -> None:
    embedder = TextEmbedder.load(folder, TASK)
    for given in ([5] * 65, "good " * 100):
        (encoded,) = embedder.encode(ask(given, truncate=True))
        assert encoded.num_tokens == 64


@pytest.mark.usefixtures("preloaded_check")
@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("1_Pooling", {"pooling_mode_max_tokens": True}, "has the pooling .'pooling_mode_max_tok"),
        ("1_Pooling", {"pooling_mode": "lasttoken"}, "has the pooling .'lasttoken'.; expected"),
        ("2_Dense", {}, "has a dense layer after its pooling"),
    ],
)
def test_other_pooling_is_refused(
    layout: StorageLayout, tmp_path: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    folder = build_tiny_encoder(tmp_path / "encoder")
    (folder / name).mkdir()
    durable.write_json(folder / name / "config.json", settings)
    with pytest.raises(EngineDeadError, match=message):
        TextEmbedder.load(folder, TASK)
    with pytest.raises(ModelRefusedError, match=message):
        ModelStore(layout).install(folder, "imported")


def test_encoder_without_a_layer_is_refused(folder: Path, tmp_path: Path) -> None:
    broken = build_tiny_encoder(tmp_path / "encoder", num_hidden_layers=1)
    config = durable.read_json(broken / "config.json")
    durable.write_json(broken / "config.json", {**config, "num_hidden_layers": 2})
    with pytest.raises(EngineDeadError, match="missing keys: encoder.layer.1"):
        TextEmbedder.load(broken, TASK)
    deeper = build_tiny_encoder(tmp_path / "deeper", num_hidden_layers=3)
    durable.write_json(
        deeper / "config.json", {**config, "num_hidden_layers": 2, "architectures": ["BertModel"]}
    )
    with pytest.raises(EngineDeadError, match="unexpected keys: .*encoder.layer.2"):
        TextEmbedder.load(deeper, TASK)


@pytest.mark.anyio
@pytest.mark.usefixtures("preloaded_check")
async def test_dimensions_must_be_those_of_the_model(
    layout: StorageLayout, bare_folder: Path
) -> None:
    assert ModelStore(layout).install(bare_folder, "bare").task == "embedding"
    replica = ClassifierReplica(ClassifierReplicaSettings(storage=str(layout.root)))
    request = parse_embedding_request({"model": "bare", "input": TEXTS, "dimensions": 32})
    answer = unwrap(await replica.embed(EmbedCall("embd-1", request)))
    assert [len(vector) for vector in answer.vectors] == [4 * 32] * 3
    request = parse_embedding_request({"model": "bare", "input": "a", "dimensions": 16})
    with pytest.raises(InvalidRequestError, match="dimensions is 16, and vectors .* have 32"):
        unwrap(await replica.embed(EmbedCall("embd-1", request)))
