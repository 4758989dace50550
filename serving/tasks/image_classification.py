"""Image classifiers: the label of an image."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.served_task import AnswerKind, Companion, find_architecture, select_all_mismatches

if TYPE_CHECKING:
    from serving.classification.image_classifier import ImageClassifier


class ServedImageClassifier:
    """The task of models with a classification head for images."""

    model_class = "AutoModelForImageClassification"
    answers: AnswerKind = "labels"
    description = "is an image classifier; use POST /v1/classify with 'images'"
    companion: Companion = "preprocessor_config.json"
    select_mismatches = staticmethod(select_all_mismatches)

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Return whether the architecture is that of an image classifier."""
        return find_architecture(config).endswith("ForImageClassification")

    def try_companion(self, directory: Path) -> int:
        """Try the image processor, whose memory is not worth counting."""
        from model_files.images.preprocessing import load_image_processor, measure_processed

        measure_processed(load_image_processor(directory), repr(directory.name))
        return 0

    def open_predictor(self, directory: Path) -> "ImageClassifier":
        """Load the classifier and its image processor."""
        from serving.classification.image_classifier import ImageClassifier

        return ImageClassifier.load(directory, self)


TASK = ServedImageClassifier()
