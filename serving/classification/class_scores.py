"""Scores of a classifier's labels from its logits, and the labels that an answer has."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serving.classification.wire import Classification, LabelScore
from serving.served_task import Predictor

if TYPE_CHECKING:
    import torch


class ClassScores:
    """The labels of a model with a classification head."""

    def __init__(self, config: Any) -> None:
        self.labels = [str(config.id2label[number]) for number in range(config.num_labels)]
        kind = "regression" if config.num_labels == 1 else "single_label_classification"
        self._problem_type = config.problem_type or kind

    @property
    def predicts_value(self) -> bool:
        """Whether the model predicts one number."""
        return self._problem_type == "regression" and len(self.labels) == 1

    def compute(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Return the scores of logits `[rows, labels]` in fp32: softmax, sigmoid or equal."""
        logits = logits.float()
        if self._problem_type == "regression":
            return logits
        if self._problem_type == "multi_label_classification":
            return logits.sigmoid()
        return logits.softmax(-1)


def rank_labels(predictor: Predictor, scores: Sequence[float], top_k: int) -> Classification:
    """Return the `top_k` labels of the highest scores; or the value that the model predicts."""
    if predictor.predicts_value:
        return Classification(value=scores[0])
    ranked = sorted(zip(predictor.labels, scores, strict=True), key=lambda pair: -pair[1])
    return Classification(tuple(LabelScore(*pair) for pair in ranked[:top_k]))
