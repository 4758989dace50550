from pathlib import Path

import pytest

from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.tiny_encoder import build_tiny_encoder

LABELS = {0: "negative", 1: "neutral", 2: "positive"}


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with the labels `LABELS`."""
    return build_classifier(tmp_path_factory.mktemp("classifier") / "model")


def build_classifier(folder: Path, **config: object) -> Path:
    labels = {"id2label": LABELS, "label2id": {name: number for number, name in LABELS.items()}}
    return build_tiny_encoder(folder, num_labels=3, **{**labels, **config})


@pytest.fixture
def classifier_store(layout: StorageLayout, classifier_folder: Path) -> ModelStore:
    """A store with the classifier `sentiment`."""
    store = ModelStore(layout)
    store.add(classifier_folder, "sentiment")
    return store
