"""Models that generate no text: import, aliases, and refusal by the generator."""

import shutil
from pathlib import Path

import pytest

from serving.errors import InvalidRequestError
from serving.generator import GeneratorReplica
from serving.store.import_process import ModelRefusedError
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.serving.conftest import run_replica, stream_chat
from tests.tiny_encoder import build_tiny_encoder


@pytest.mark.usefixtures("preloaded_check")
@pytest.mark.parametrize(
    ("num_labels", "task"), [(3, "sequence_classification"), (None, "embedding")]
)
def test_classifiers_and_encoders_are_imported(
    layout: StorageLayout, tmp_path: Path, num_labels: int | None, task: str
) -> None:
    folder = build_tiny_encoder(tmp_path / "source", num_labels=num_labels)
    model = ModelStore(layout).import_directory(folder, "imported")
    assert model.task == task
    assert ModelStore(layout).get("imported").task == task


@pytest.mark.usefixtures("preloaded_check")
def test_classifier_without_its_head_is_refused(layout: StorageLayout, tmp_path: Path) -> None:
    folder = build_tiny_encoder(tmp_path / "source")
    classifier = build_tiny_encoder(tmp_path / "classifier", num_labels=3)
    shutil.copy(classifier / "config.json", folder / "config.json")
    with pytest.raises(ModelRefusedError, match="missing keys: bert.pooler.*classifier"):
        ModelStore(layout).import_directory(folder, "imported")


async def chat_forever(replica: GeneratorReplica, name: str) -> None:
    """Chat until the replica has polled the alias and refuses the model."""
    while True:
        await stream_chat(replica, name)


@pytest.mark.anyio
async def test_generator_refuses_classifier_and_keeps_serving(
    layout: StorageLayout, store: ModelStore, tmp_path: Path, tiny_model: Path
) -> None:
    store.add(tiny_model, "text")
    store.add(build_tiny_encoder(tmp_path / "c", num_labels=2), "mood")
    store.point_alias("latest", "text")
    store.point_alias("alias", "text")
    with pytest.raises(InvalidRequestError, match="'latest' is for language models, and 'mood'"):
        store.point_alias("latest", "mood")
    async with run_replica(layout) as replica:
        assert (await stream_chat(replica, "alias")).origin.model_id == "text"
        for name in ("mood", "alias"):
            store.point_alias("alias", "mood")
            with pytest.raises(
                InvalidRequestError, match="'mood' is a text classifier; use POST /v1/classify"
            ):
                await chat_forever(replica, name)
        assert (await stream_chat(replica, "latest")).origin.model_id == "text"
        assert [one.model_id for one in await replica.loaded_models()] == ["text"]
