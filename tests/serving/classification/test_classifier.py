"""A classifier replica without Serve."""

import asyncio
import base64
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from serving.classification import classifier
from serving.classification.classifier import ClassifierReplica, ClassifierReplicaSettings
from serving.classification.request import parse_classify_request
from serving.classification.wire import ClassifyAnswer, ClassifyCall
from serving.errors import InvalidRequestError, ModelNotFoundError
from serving.refusals import unwrap
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.tiny_vision import build_tiny_vit, draw_shape

pytestmark = pytest.mark.anyio


@pytest.fixture
async def replica(layout: StorageLayout) -> ClassifierReplica:
    return ClassifierReplica(ClassifierReplicaSettings(storage=str(layout.root), log_texts=True))


async def classify(replica: ClassifierReplica, model: str, **fields: Any) -> ClassifyAnswer:
    body = {"model": model, "input": "the film was good", **fields}
    return unwrap(await replica.classify(ClassifyCall("clsf-1", parse_classify_request(body))))


async def test_answers_do_not_depend_on_the_batch(
    classifier_store: ModelStore, replica: ClassifierReplica
) -> None:
    texts = ["good", "the book was bad", "very plain"]
    together = await classify(replica, "sentiment", input=texts)
    assert together.origin.model_id == "sentiment"
    alone = [await classify(replica, "sentiment", input=text) for text in texts]
    assert together.num_prompt_tokens == sum(one.num_prompt_tokens for one in alone)
    for result, one in zip(together.results, alone, strict=True):
        expected = dict(one.results[0].labels)
        assert dict(result.labels) == pytest.approx(expected, abs=1e-5)
        assert set(expected) == {"negative", "neutral", "positive"}


async def test_language_model_is_refused(
    layout: StorageLayout, tiny_model: Path, replica: ClassifierReplica
) -> None:
    ModelStore(layout).add(tiny_model, "tiny")
    with pytest.raises(InvalidRequestError, match="'tiny' is a language model; use POST /v1/chat"):
        await classify(replica, "tiny")
    with pytest.raises(ModelNotFoundError):
        await classify(replica, "nothing")


async def test_request_of_too_many_processed_images_is_refused(
    layout: StorageLayout,
    replica: ClassifierReplica,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ModelStore(layout).add(build_tiny_vit(tmp_path / "vit"), "shapes")
    encoded = BytesIO()
    draw_shape("red", 1).save(encoded, "PNG")
    images = [base64.b64encode(encoded.getvalue()).decode()] * 2
    monkeypatch.setattr(classifier, "MAX_HELD_BYTES", 2 * 3 * 4 * 32 * 32)
    answer = await classify(replica, "shapes", input=None, images=images)
    assert len(answer.results) == 2
    with pytest.raises(InvalidRequestError, match="36,864 bytes .*, expected at most 24,576"):
        await classify(replica, "shapes", input=None, images=[*images, images[0]])


async def test_moved_alias_is_answered_by_old_model_until_new_one_is_loaded(
    classifier_store: ModelStore, replica: ClassifierReplica, classifier_folder: Path
) -> None:
    classifier_store.add(classifier_folder, "newer")
    classifier_store.point_alias("mood", "sentiment")
    assert (await classify(replica, "mood")).origin.model_id == "sentiment"
    classifier_store.point_alias("mood", "newer")
    answers = [(await classify(replica, "mood")).origin.model_id]
    assert answers == ["sentiment"]
    async with asyncio.timeout(20):
        while answers[-1] != "newer":
            answers.append((await classify(replica, "mood")).origin.model_id)
    classifier_store.point_alias("mood", "sentiment")
    assert (await classify(replica, "mood")).origin.model_id == "sentiment"


async def test_old_model_answers_if_new_one_is_damaged(
    classifier_store: ModelStore, replica: ClassifierReplica, classifier_folder: Path
) -> None:
    classifier_store.add(classifier_folder, "broken")
    weights = classifier_store.get("broken").path / "model.safetensors"
    weights.chmod(0o600)
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    classifier_store.point_alias("mood", "sentiment")
    await classify(replica, "mood")
    classifier_store.point_alias("mood", "broken")
    for _ in range(20):
        assert (await classify(replica, "mood")).origin.model_id == "sentiment"
        await asyncio.sleep(0.01)


async def test_deleted_model_is_not_served(
    classifier_store: ModelStore, replica: ClassifierReplica
) -> None:
    await classify(replica, "sentiment")
    path = classifier_store.get("sentiment").path
    shutil.rmtree(path)
    with pytest.raises(ModelNotFoundError):
        await classify(replica, "sentiment")
