"""One loaded image classifier, compared with plain transformers and with training."""

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

from serving.classification import image_classifier
from serving.classification.image_classifier import ImageClassifier
from serving.classification.request import ClassifyRequest, ImageInput, parse_classify_request
from serving.errors import InvalidRequestError
from serving.store.model_store import ModelStore
from serving.tasks.image_classification import TASK
from storage.layout import StorageLayout
from tests.tiny_vision import (
    build_tiny_convolutions,
    build_tiny_vit,
    declare_png,
    draw_shape,
    encode,
)
from training.data.images.processor import open_image_processor
from training.spec import TrainingSpec
from training.tasks.image_classification import ImageClassificationTask

IMAGES = [draw_shape("red", 1), draw_shape("blue", 2, (64, 30)), draw_shape("green", 3)]


def ask(images: Sequence[bytes], **fields: Any) -> ClassifyRequest:
    coded = [base64.b64encode(image).decode() for image in images]
    return parse_classify_request({"model": "m", "images": coded, **fields})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_vit(tmp_path_factory.mktemp("vit") / "vit")


@pytest.mark.parametrize("kind", ["vit", "convnext", "resnet"])
def test_scores_equal_plain_transformers(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    build_tiny_vit(folder) if kind == "vit" else build_tiny_convolutions(folder, kind)
    classifier = ImageClassifier.load(folder, TASK)
    found = classifier.predict(classifier.encode(ask([encode(image) for image in IMAGES])))
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    for image, scores in zip(IMAGES, found, strict=True):
        with torch.no_grad():
            logits = model(**processor(image, return_tensors="pt")).logits
        assert scores == pytest.approx(logits.softmax(-1)[0].tolist(), abs=1e-5)


def test_pixel_values_equal_those_of_an_evaluation(folder: Path) -> None:
    spec = TrainingSpec.model_validate(
        {"base_model": str(folder), "train_file": "-", "task": "image_classification"}
    )
    summary = {"labels": ["a"], "class_weights": [1.0], "image_size": [32, 32]}
    objective = ImageClassificationTask().open_objective(spec, summary)
    images = [encode(image, kind) for image in IMAGES for kind in ("PNG", "JPEG", "WEBP")]
    expected = objective._process
    classifier = ImageClassifier.load(folder, TASK)
    found = torch.cat([one.pixel_values for one in classifier.encode(ask(images))])
    decoded = [Image.open(BytesIO(image)).convert("RGB") for image in images]
    assert torch.equal(found, expected(decoded))
    assert open_image_processor(str(folder)).size == classifier._processor.size


def test_batches_do_not_change_scores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ask([encode(image) for image in IMAGES])
    whole = ImageClassifier.load(folder, TASK)
    expected = whole.predict(whole.encode(request))
    monkeypatch.setattr(image_classifier, "_MAX_BATCH_PIXELS", 1)
    single = ImageClassifier.load(folder, TASK)
    for one, other in zip(single.predict(single.encode(request)), expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"no image", "^image 1 is not an image, expected one of JPEG"),
        (encode(IMAGES[0])[:-40], "^image 1 cannot be decoded"),
        (declare_png(8000, 8000), "^image 1 has 8,000 × 8,000 pixels, expected at most 50,000,000"),
        (declare_png(90_000, 90_000), "^image 1 has more than 50,000,000 pixels"),
    ],
)
def test_unusable_image_is_named(folder: Path, image: bytes, message: str) -> None:
    classifier = ImageClassifier.load(folder, TASK)
    with pytest.raises(InvalidRequestError, match=message) as found:
        classifier.encode(ask([encode(IMAGES[0]), image]))
    assert (found.value.param, found.value.code) == ("images", "invalid_image")


def test_pixels_of_a_request_are_limited(folder: Path) -> None:
    classifier = ImageClassifier.load(folder, TASK)
    request = parse_classify_request(
        {"model": "m", "images": [ImageInput("'a.png'", declare_png(7000, 7000))] * 3}
    )
    with pytest.raises(InvalidRequestError, match="the images have 147,000,000 pixels, expected"):
        classifier.encode(request)


def test_texts_are_refused(folder: Path) -> None:
    classifier = ImageClassifier.load(folder, TASK)
    with pytest.raises(InvalidRequestError, match="image classifier; send images as 'images'"):
        classifier.encode(parse_classify_request({"model": "m", "input": "a"}))
    with pytest.raises(InvalidRequestError, match="truncate is true, and images have no tokens"):
        classifier.encode(ask([encode(IMAGES[0])], truncate=True))


@pytest.mark.usefixtures("preloaded_check")
def test_image_classifier_is_imported(layout: StorageLayout, folder: Path) -> None:
    store = ModelStore(layout)
    model = store.install(folder, "shapes")
    assert model.task == "image_classification"
    assert ImageClassifier.load(model.path, TASK).labels == ["LABEL_0", "LABEL_1"]
