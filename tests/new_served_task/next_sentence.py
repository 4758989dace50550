"""A served task that is not part of the product: whether the second text follows the first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving.classification.text_classifier import TextClassifier
from serving.loading.inspection import try_tokenizer
from serving.served_task import AnswerKind, Companion, find_architecture


class ServedNextSentence:
    model_class = "AutoModelForNextSentencePrediction"
    answers: AnswerKind = "labels"
    description = "tells whether two texts belong together; use POST /v1/classify"
    companion: Companion = "tokenizer.json"

    def matches(self, config: Mapping[str, Any]) -> bool:
        return find_architecture(config).endswith("ForNextSentencePrediction")

    def select_mismatches(self, report: Mapping[str, Any], model: Any) -> Mapping[str, Any]:
        return report

    def try_companion(self, directory: Path) -> int:
        return try_tokenizer(directory, is_for_chat=False)

    def open_predictor(self, directory: Path) -> TextClassifier:
        return TextClassifier.load(directory, self)


TASK = ServedNextSentence()
