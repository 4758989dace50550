"""One loaded image classifier: scores of its labels for images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from model_files.images.decoding import ImageFault, measure_image, read_image
from model_files.images.preprocessing import (
    load_image_processor,
    measure_processed,
    process_images,
)
from serving.classification.class_scores import ClassScores
from serving.classification.request import ClassifyRequest, ImageInput
from serving.errors import EngineDeadError, InvalidRequestError
from serving.loading.loading import load_predicting_model
from serving.served_task import ServedTask

MAX_REQUEST_PIXELS = 100_000_000
"""Most pixels of all images of a request, which are decoded one after the other."""
_MAX_BATCH_PIXELS = 32 * 224 * 224
"""Most pixels of one forward pass, after processing, unless a single image has more."""


class ProcessedImage(NamedTuple):
    """One image as pixel values in fp32, `[1, 3, height, width]`."""

    pixel_values: torch.Tensor
    num_tokens: int = 0


class ImageClassifier:
    """A model with a classification head, and its image processor; a `Predictor`."""

    def __init__(self, model: Any, processor: Any, size: tuple[int, int]) -> None:
        self._model = model
        self._dtype = next(model.parameters()).dtype
        self._processor = processor
        self._scores = ClassScores(model.config)
        self.labels: Sequence[str] = self._scores.labels
        self.predicts_value = self._scores.predicts_value
        num_pixels = size[0] * size[1]
        self._batch_size = max(1, _MAX_BATCH_PIXELS // num_pixels)
        self.input_bytes = 3 * 4 * num_pixels

    @classmethod
    def load(cls, path: Path, task: ServedTask) -> "ImageClassifier":
        """Load a published model; raises `EngineDeadError`."""
        model = load_predicting_model(path, task)
        try:
            processor = load_image_processor(path)
            size = measure_processed(processor, repr(path.name))
        except (OSError, ValueError, ImportError, TypeError) as exc:
            raise EngineDeadError(f"model {path.name!r} cannot be loaded: {exc}") from exc
        return cls(model, processor, size)

    def encode(self, request: ClassifyRequest) -> list[ProcessedImage]:
        """Decode and process images as training does in an evaluation.

        Raises `InvalidRequestError` that names the first image that cannot be used.
        """
        if request.images is None:
            raise InvalidRequestError(
                "the model is an image classifier; send images as 'images' instead of 'input'",
                param="input",
            )
        if request.truncate:
            raise InvalidRequestError("truncate is true, and images have no tokens; remove it")
        try:
            self._check_pixels(request.images)
            return [self._process(image) for image in request.images]
        except ImageFault as exc:
            raise InvalidRequestError(str(exc), param="images", code="invalid_image") from exc

    def predict(self, inputs: Sequence[ProcessedImage]) -> list[tuple[float, ...]]:
        """Return the scores of all labels for each image."""
        found: list[tuple[float, ...]] = []
        for start in range(0, len(inputs), self._batch_size):
            rows = [one.pixel_values for one in inputs[start : start + self._batch_size]]
            with torch.inference_mode():
                logits = self._model(pixel_values=torch.cat(rows).to(self._dtype)).logits
                found += map(tuple, self._scores.compute(logits).tolist())
        return found

    def _check_pixels(self, images: Sequence[ImageInput]) -> None:
        num_pixels = sum(measure_image(image.content, image.name) for image in images)
        if num_pixels > MAX_REQUEST_PIXELS:
            raise InvalidRequestError(
                f"the images have {num_pixels:,} pixels, expected at most {MAX_REQUEST_PIXELS:,} "
                "in a request; make them smaller, or send several requests",
                param="images",
            )

    def _process(self, image: ImageInput) -> ProcessedImage:
        decoded = read_image(image.content, image.name)
        return ProcessedImage(process_images([decoded], self._processor))
