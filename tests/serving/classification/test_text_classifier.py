"""One loaded classifier, compared with plain transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from serving.classification.class_scores import rank_labels
from serving.classification.request import ClassifyRequest, parse_classify_request
from serving.classification.text_classifier import TextClassifier
from serving.errors import EngineDeadError, InvalidRequestError
from serving.tasks.sequence_classification import TASK
from tests.serving.classification.conftest import build_classifier
from tests.tiny_encoder import build_tiny_encoder

TEXTS = [("the film was good",), ("bad",), ("the book was very very plain",)]
PAIRS = [("the film was good", "really"), ("bad", "the book was plain")]


def load(folder: Path) -> TextClassifier:
    return TextClassifier.load(folder, TASK)


def ask(inputs: Sequence[tuple[str, ...]], **fields: Any) -> ClassifyRequest:
    given = [texts[0] if len(texts) == 1 else list(texts) for texts in inputs]
    return parse_classify_request({"model": "m", "input": given, **fields})


@pytest.mark.parametrize("inputs", [TEXTS, PAIRS], ids=["texts", "pairs"])
def test_scores_equal_plain_transformers(classifier_folder: Path, inputs: list[tuple[str]]) -> None:
    classifier = load(classifier_folder)
    found = classifier.predict(classifier.encode(ask(inputs)))
    model = AutoModelForSequenceClassification.from_pretrained(classifier_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(classifier_folder)
    for texts, scores in zip(inputs, found, strict=True):
        with torch.no_grad():
            expected = model(**tokenizer(*texts, return_tensors="pt")).logits.softmax(-1)[0]
        assert scores == pytest.approx(expected.tolist(), abs=1e-5)
        assert sum(scores) == pytest.approx(1)


def test_labels_are_ranked(classifier_folder: Path) -> None:
    classifier = load(classifier_folder)
    ranked = rank_labels(classifier, [0.2, 0.1, 0.7], 2)
    assert ranked.labels == (("positive", 0.7), ("negative", 0.2))


def test_several_labels_have_independent_scores(tmp_path: Path) -> None:
    folder = build_classifier(tmp_path / "m", problem_type="multi_label_classification")
    classifier = load(folder)
    (scores,) = classifier.predict(classifier.encode(ask([("good",)])))
    logits = [torch.tensor(score).logit().item() for score in scores]
    assert sum(scores) != pytest.approx(1, abs=1e-3)
    assert len(logits) == 3


def test_regression_has_a_value(tmp_path: Path) -> None:
    classifier = load(build_tiny_encoder(tmp_path / "m", num_labels=1))
    (scores,) = classifier.predict(classifier.encode(ask([("good",)])))
    result = rank_labels(classifier, scores, 5)
    assert result.labels == ()
    assert result.value == scores[0]


def test_long_input_is_refused_or_truncated(classifier_folder: Path) -> None:
    classifier = load(classifier_folder)
    inputs = [("good",), ("good " * 100,)]
    with pytest.raises(InvalidRequestError, match="input 1 has 102 tokens; expected at most 64"):
        classifier.encode(ask(inputs))
    short, long = classifier.encode(ask(inputs, truncate=True))
    assert (len(short.input_ids), len(long.input_ids)) == (3, 64)


def test_model_without_its_head_is_refused(tmp_path: Path) -> None:
    folder = build_tiny_encoder(tmp_path / "encoder")
    with pytest.raises(EngineDeadError, match="missing keys: bert.pooler.*classifier"):
        load(folder)


def test_images_are_refused(classifier_folder: Path) -> None:
    request = parse_classify_request({"model": "m", "images": "YQ=="})
    with pytest.raises(InvalidRequestError, match="text classifier; send texts as 'input'"):
        load(classifier_folder).encode(request)
