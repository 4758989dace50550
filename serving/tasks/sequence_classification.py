"""Text classifiers: labels of one text, or of two that belong together."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.served_task import AnswerKind, Companion, find_architecture, select_all_mismatches

if TYPE_CHECKING:
    from serving.classification.text_classifier import TextClassifier


class ServedTextClassifier:
    """The task of models with a classification head for texts."""

    model_class = "AutoModelForSequenceClassification"
    answers: AnswerKind = "labels"
    description = "is a text classifier; use POST /v1/classify"
    companion: Companion = "tokenizer.json"
    select_mismatches = staticmethod(select_all_mismatches)

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Return whether the architecture is that of a text classifier."""
        return find_architecture(config).endswith("ForSequenceClassification")

    def try_companion(self, directory: Path) -> int:
        """Try the tokenizer."""
        from serving.loading.inspection import try_tokenizer

        return try_tokenizer(directory, is_for_chat=False)

    def open_predictor(self, directory: Path) -> "TextClassifier":
        """Load the classifier and its tokenizer."""
        from serving.classification.text_classifier import TextClassifier

        return TextClassifier.load(directory, self)


TASK = ServedTextClassifier()
