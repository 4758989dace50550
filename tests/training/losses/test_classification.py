from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tests.tiny_encoder import build_tiny_encoder
from training.data.labelled.texts import LabelledRow
from training.losses.classification import (
    MAX_CLASSES_COUNTED,
    Classes,
    ClassificationMetrics,
    LabelEncoder,
    collate_labelled,
    compute_classification,
)
from training.task import ConfusionMatrix

SINGLE = Classes("single_label_classification", ("a", "b", "c"))
SEVERAL = Classes("multi_label_classification", ("a", "b", "c"))
NUMBER = Classes("regression", ())
LABELS: dict[str, list[tuple[str, ...]]] = {
    "single_label_classification": [("c",), ("a",)],
    "multi_label_classification": [("a", "c"), ()],
    "regression": [("1.5",), ("-2",)],
}


def make_rows(labels: Sequence[tuple[str, ...]]) -> list[LabelledRow]:
    random = np.random.default_rng(0)
    return [
        LabelledRow(
            random.integers(5, 40, length).astype(np.int32),
            (np.arange(length) > length // 2).astype(np.uint8),
            own,
        )
        for length, own in zip((9, 5), labels, strict=False)
    ]


def make_batch(classes: Classes, rows: Sequence[LabelledRow]) -> Any:
    labels = LabelEncoder(classes).encode([row.labels for row in rows])
    return collate_labelled(rows, labels, pad_token_id=0)


def load(folder: Path, classes: Classes, *, with_gradient: bool = False) -> Any:
    build_tiny_encoder(folder, num_labels=classes.num_outputs)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.config.problem_type = classes.problem_type
    return model.eval().requires_grad_(requires_grad=with_gradient)


@pytest.mark.parametrize("classes", [SINGLE, SEVERAL, NUMBER], ids=lambda one: one.problem_type)
def test_loss_is_sum_of_transformers_losses_of_single_rows(
    tmp_path: Path, classes: Classes
) -> None:
    model = load(tmp_path, classes)
    rows = make_rows(LABELS[classes.problem_type])
    batch = make_batch(classes, rows)
    expected = 0.0
    for place, row in enumerate(rows):
        inputs = {
            "input_ids": torch.from_numpy(row.input_ids.astype(np.int64))[None],
            "token_type_ids": torch.from_numpy(row.type_ids.astype(np.int64))[None],
        }
        expected += float(model(**inputs, labels=batch.labels[place : place + 1]).loss)
    result = compute_classification(model, batch, classes)
    assert float(result.loss_sum) == pytest.approx(expected, rel=1e-5)
    assert result.predictions is not None
    assert len(result.predictions) == 2


def test_class_weights_multiply_losses(tmp_path: Path) -> None:
    model = load(tmp_path, SINGLE)
    rows = make_rows(LABELS["single_label_classification"])
    alone = [
        float(compute_classification(model, make_batch(SINGLE, [row]), SINGLE).loss_sum)
        for row in rows
    ]
    weighted = Classes(SINGLE.problem_type, SINGLE.names, (0.5, 1.0, 3.0))
    found = compute_classification(model, make_batch(weighted, rows), weighted)
    assert float(found.loss_sum) == pytest.approx(3.0 * alone[0] + 0.5 * alone[1], rel=1e-5)
    assert LabelEncoder(weighted).weigh([row.labels for row in rows]) == 3.5


@pytest.mark.parametrize("classes", [SINGLE, SEVERAL, NUMBER], ids=lambda one: one.problem_type)
def test_empty_batch_has_zero_loss_and_gradient(tmp_path: Path, classes: Classes) -> None:
    model = load(tmp_path, classes, with_gradient=True)
    loss = compute_classification(model, make_batch(classes, []), classes).loss_sum
    assert loss.item() == 0
    parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert not any(part.any() for part in parts if part is not None)


NAMES = {
    "single_label_classification": ("accuracy", "f1", "f1_macro", "matthews"),
    "multi_label_classification": ("accuracy", "f1_macro", "f1_micro"),
    "regression": ("pearson",),
}


def measure(classes: Classes, batches: Sequence[tuple[Any, Any]]) -> dict[str, float]:
    metrics = ClassificationMetrics(classes, NAMES[classes.problem_type], torch.device("cpu"))
    for predictions, labels in batches:
        metrics.add(torch.tensor(predictions), torch.tensor(labels))
    return metrics.compute()


def test_metrics_of_two_classes() -> None:
    """Three true positives, one false positive, two false negatives, two true negatives."""
    classes = Classes("single_label_classification", ("no", "yes"))
    yes, no = [0.0, 1.0], [1.0, 0.0]
    first = ([yes, yes, yes, yes], [1, 1, 1, 0])
    second = ([no, no, no, no], [1, 1, 0, 0])
    found = measure(classes, [first, second])
    assert found["accuracy"] == pytest.approx(5 / 8)
    assert found["f1"] == pytest.approx(6 / 9)
    assert found["f1/yes"] == pytest.approx(6 / 9)
    assert found["f1/no"] == pytest.approx(4 / 7)
    assert found["f1_macro"] == pytest.approx((6 / 9 + 4 / 7) / 2)
    assert found["matthews"] == pytest.approx((3 * 2 - 1 * 2) / (4 * 5 * 3 * 4) ** 0.5)


def test_confusion_matrix_counts_every_row() -> None:
    classes = Classes("single_label_classification", ("no", "yes"))
    metrics = ClassificationMetrics(classes, ("accuracy",), torch.device("cpu"))
    yes, no = [0.0, 1.0], [1.0, 0.0]
    for predictions, labels in (([yes, yes, no], [1, 0, 1]), ([yes, no], [0, 0])):
        metrics.add(torch.tensor(predictions), torch.tensor(labels))
    found = metrics.count_predictions()
    assert found == ConfusionMatrix(("no", "yes"), ((1, 2), (1, 1)))


@pytest.mark.parametrize(
    "classes",
    [
        Classes("multi_label_classification", ("a", "b")),
        Classes("regression", ()),
        Classes("single_label_classification", tuple(map(str, range(MAX_CLASSES_COUNTED + 1)))),
    ],
    ids=["several labels", "number", "many classes"],
)
def test_no_confusion_matrix(classes: Classes) -> None:
    metrics = ClassificationMetrics(classes, (), torch.device("cpu"))
    assert metrics.count_predictions() is None


def test_metrics_of_several_labels() -> None:
    classes = Classes("multi_label_classification", ("a", "b"))
    found = measure(classes, [([[5.0, -5.0], [5.0, 5.0]], [[1.0, 0.0], [0.0, 1.0]])])
    assert found["accuracy"] == pytest.approx(1 / 2)
    assert found["f1_micro"] == pytest.approx(4 / 5)
    assert found["f1/a"] == pytest.approx(2 / 3)


def test_metrics_of_numbers() -> None:
    found = measure(NUMBER, [([1.0, 2.0], [2.0, 4.0]), ([3.0], [6.0])])
    assert found == {"pearson": pytest.approx(1.0)}
