"""Micro batches of labelled rows, their losses, and the metrics of an evaluation.

`B` is the number of rows of a micro batch, `C` the number of classes. Every row is one target; the
loss of a row follows transformers: cross entropy for one label, the mean binary cross entropy over
all classes for several labels, the squared error for a number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the conventional name
from torchmetrics import MetricCollection, PearsonCorrCoef
from torchmetrics.classification import (
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassMatthewsCorrCoef,
    MultilabelExactMatch,
    MultilabelF1Score,
)

from training.data.labelled.texts import LabelledRow
from training.data.row_table import RowTable
from training.task import BatchResult, ConfusionMatrix, MicroBatch

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]

MAX_CLASSES_MEASURED = 20
"""Up to so many classes, the F1 of each is measured too."""

MAX_CLASSES_COUNTED = 50
"""Up to so many classes, an evaluation has a confusion matrix."""

TOP_K = 5
"""A row counts for 'top5' if its class is among so many with the highest logits."""

_RANKED = ("top5",)  # metrics of the logits instead of the predicted class
_IGNORED = -100


@dataclass(frozen=True)
class Classes:
    """The classes that a model distinguishes, in the order of its outputs; none for a number.

    `weights` multiply the loss of a row by its class; empty if all weigh the same.
    """

    problem_type: ProblemType
    names: tuple[str, ...]
    weights: tuple[float, ...] = ()

    @property
    def num_outputs(self) -> int:
        """The number of outputs of the model for a row."""
        return max(1, len(self.names))


def set_classes(config: Any, classes: Classes) -> None:
    """Set the classes of a model and their names in its configuration."""
    config.num_labels = classes.num_outputs
    if classes.names:
        config.id2label = dict(enumerate(classes.names))
        config.label2id = {name: number for number, name in enumerate(classes.names)}
    config.problem_type = classes.problem_type


class LabelEncoder:
    """Turns the labels of rows into tensors."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._numbers = {name: number for number, name in enumerate(classes.names)}

    def encode(self, rows: Sequence[tuple[str, ...]]) -> torch.Tensor:
        """Return labels of the task's shape: int64 `[B]`, float32 `[B, C]`, or float32 `[B]`.

        Without rows, there is one that the loss ignores.
        """
        kind = self._classes.problem_type
        if kind == "single_label_classification":
            return torch.tensor([self._numbers[one] for (one,) in rows] or [_IGNORED])
        if kind == "regression":
            return torch.tensor([float(one) for (one,) in rows] or [float("nan")])
        if not rows:
            return torch.full((1, len(self._numbers)), float("nan"))
        encoded = torch.zeros(len(rows), len(self._numbers))
        for row, labels in enumerate(rows):
            encoded[row, [self._numbers[label] for label in labels]] = 1.0
        return encoded

    def weigh(self, rows: Sequence[tuple[str, ...]]) -> float:
        """Return the total weight of rows."""
        weights = self._classes.weights
        if not weights:
            return float(len(rows))
        return sum(weights[self._numbers[label]] for (label,) in rows)

    def weigh_rows(self, rows: RowTable, indices: Sequence[int]) -> float:
        """Return the total weight of rows of a table, read only if classes have weights."""
        if not self._classes.weights:
            return float(len(indices))
        return self.weigh(rows.read_labels(indices))


def collate_labelled(
    rows: Sequence[LabelledRow], labels: torch.Tensor, pad_token_id: int
) -> MicroBatch:
    """Pad rows on the right; the inputs are int64 `[B, longest]`.

    Without rows, there is one of a single token.
    """
    ids = [row.input_ids for row in rows] or [np.full(1, pad_token_id, np.int32)]
    shape = (len(ids), max(map(len, ids)))
    input_ids = np.full(shape, pad_token_id, np.int64)
    mask = np.zeros(shape, np.int64)
    types = np.zeros(shape, np.int64)
    for place, own in enumerate(ids):
        input_ids[place, : len(own)] = own
        mask[place, : len(own)] = 1
        if rows and len(rows[place].type_ids):
            types[place, : len(own)] = rows[place].type_ids
    inputs = {
        "input_ids": torch.from_numpy(input_ids),
        "attention_mask": torch.from_numpy(mask),
    }
    if any(len(row.type_ids) for row in rows):
        inputs["token_type_ids"] = torch.from_numpy(types)
    return MicroBatch(inputs, labels)


def compute_classification(model: Any, batch: MicroBatch, classes: Classes) -> BatchResult:
    """Compute the summed loss of a batch; the predictions are the logits in fp32, `[B, C]`.

    The labels of a batch of one class for each row may also be the shares of all classes, `[B, C]`.
    """
    logits = model(**batch.inputs).logits.float()
    labels = batch.labels
    if classes.problem_type == "single_label_classification":
        weights = logits.new_tensor(classes.weights) if classes.weights else None
        loss = F.cross_entropy(
            logits, labels, weight=weights, ignore_index=_IGNORED, reduction="sum"
        )
        return BatchResult(loss, logits.detach())
    if classes.problem_type == "regression":
        logits = logits.squeeze(-1)
    is_row = ~torch.isnan(labels)
    targets = torch.where(is_row, labels, logits.detach())
    if classes.problem_type == "regression":
        losses = F.mse_loss(logits, targets, reduction="none")
    else:
        losses = F.binary_cross_entropy_with_logits(
            logits, targets.clamp(0, 1), reduction="none"
        ).mean(-1)
        is_row = is_row.all(-1)
    loss = torch.where(is_row, losses, losses * 0).sum()
    return BatchResult(loss, logits.detach())


class ClassificationMetrics:
    """The metrics of an evaluation, synchronised over workers by torchmetrics.

    `names` selects them. Accuracy, F1, and the correlations of Matthews and Pearson are
    torchmetrics'. F1 is that of the second class if there are two, else the mean over all classes.
    """

    def __init__(self, classes: Classes, names: Sequence[str], device: torch.device) -> None:
        self._classes = classes
        built = {name: _build_metric(name, classes) for name in names}
        ranked = {name: metric for name, metric in built.items() if name in _RANKED}
        others = {name: metric for name, metric in built.items() if name not in _RANKED}
        self._metrics = MetricCollection(others, compute_groups=False).to(device)
        self._ranked = MetricCollection(ranked, compute_groups=False).to(device)
        num_measured = len(classes.names) <= MAX_CLASSES_MEASURED
        self._by_class = _build_f1(classes, "none") if classes.names and num_measured else None
        if self._by_class is not None:
            self._by_class.to(device)
        has_one = classes.problem_type == "single_label_classification"
        self._confusion: Any = None
        if has_one and len(classes.names) <= MAX_CLASSES_COUNTED:
            self._confusion = MulticlassConfusionMatrix(len(classes.names)).to(device)

    def add(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        """Add rows: their logits and labels."""
        self._ranked.update(predictions, labels)
        if self._classes.problem_type == "multi_label_classification":
            predictions, labels = predictions.sigmoid(), labels.long()
        elif self._classes.problem_type == "single_label_classification":
            predictions = predictions.argmax(-1)
        self._metrics.update(predictions, labels)
        if self._by_class is not None:
            self._by_class.update(predictions, labels)
        if self._confusion is not None:
            self._confusion.update(predictions, labels)

    def compute(self) -> dict[str, float]:
        """Return the metrics; all workers must call this together."""
        found = {**self._metrics.compute(), **self._ranked.compute()}
        figures = {name: float(value) for name, value in found.items()}
        if self._by_class is not None:
            values = self._by_class.compute().tolist()
            names = self._classes.names
            figures |= {f"f1/{name}": value for name, value in zip(names, values, strict=True)}
        return figures

    def count_predictions(self) -> ConfusionMatrix | None:
        """Return the confusion matrix; all workers must call this together."""
        if self._confusion is None:
            return None
        counts = self._confusion.compute().tolist()
        return ConfusionMatrix(self._classes.names, tuple(map(tuple, counts)))


def _build_metric(name: str, classes: Classes) -> Any:
    num = len(classes.names)
    if classes.problem_type == "regression":
        return {"pearson": PearsonCorrCoef}[name]()
    if classes.problem_type == "multi_label_classification":
        several: dict[str, Callable[[], Any]] = {
            "accuracy": lambda: MultilabelExactMatch(num),
            "f1_macro": lambda: MultilabelF1Score(num, average="macro"),
            "f1_micro": lambda: MultilabelF1Score(num, average="micro"),
        }
        return several[name]()
    single: dict[str, Callable[[], Any]] = {
        "accuracy": lambda: MulticlassAccuracy(num, average="micro"),
        "top5": lambda: MulticlassAccuracy(num, average="micro", top_k=TOP_K),
        "f1": lambda: BinaryF1Score() if num == 2 else MulticlassF1Score(num, average="macro"),
        "f1_macro": lambda: MulticlassF1Score(num, average="macro"),
        "matthews": lambda: MulticlassMatthewsCorrCoef(num),
    }
    return single[name]()


def _build_f1(classes: Classes, average: Literal["none"]) -> Any:
    if classes.problem_type == "multi_label_classification":
        return MultilabelF1Score(len(classes.names), average=average)
    return MulticlassF1Score(len(classes.names), average=average)
