"""The task of image classification: predict the class of an image."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from training.settings.class_settings import CHAT_SETTINGS, ClassSettings
from training.task import BatchResult, MicroBatch, Task

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from PIL import Image

    from training.batching import BatchLayout
    from training.data.images.image_rows import ImageReader
    from training.data.readers import KnownFile, RowSource
    from training.data.row_table import RowTable
    from training.losses.classification import ClassificationMetrics
    from training.spec import TrainingSpec

_METRICS = ("accuracy", "top5", "f1_macro")
_NUM_TOP = 5
_KIND: Literal["single_label_classification"] = "single_label_classification"
_STRIDE = 7919  # a prime, so that the values of neighbouring pixels differ


class ImageSettings(ClassSettings):
    """The settings of image classification."""

    augmentation: Literal["none", "standard"] = Field(
        "standard",
        description="Random changes of training images: 'standard' crops a part of random size and "
        "shape, and mirrors every second image.",
    )
    randaugment: bool = Field(
        False, description="Also change colours and geometry of training images, by RandAugment."
    )
    mixup_alpha: float = Field(
        0.0,
        ge=0,
        le=10,
        description="Parameter of the Beta distribution by which each training image is mixed with "
        "another one of its micro batch; 0: not at all, 0.2 is usual.",
    )


class ImageClassificationTask:
    """Fine-tuning of a vision model with a classification head, new or trained."""

    settings = ImageSettings
    model_class = "AutoModelForImageClassification"
    adds_head = True
    generates = False
    learns_tokens = False
    unused_settings = (*CHAT_SETTINGS, "max_length", "overlong", "text_rows")
    default_micro_batch_size = 32

    @property
    def column_names(self) -> Sequence[str]:
        """The names of columns by which a table is recognised."""
        from training.data.images.image_rows import COLUMN_NAMES

        return COLUMN_NAMES

    def list_metrics(self, spec: "TrainingSpec") -> Sequence[str]:  # noqa: ARG002 - always the same
        """Return the metrics; 'top5' is measured only for more than five classes."""
        return _METRICS

    def check_spec(self, spec: "TrainingSpec") -> None:
        """Raise `ValueError` for micro batches beyond their limit."""
        size = spec.micro_batch_size or self.default_micro_batch_size
        if spec.micro_batch_tokens < size:
            raise ValueError(
                f"micro_batch_tokens is {spec.micro_batch_tokens}, less than micro_batch_size "
                f"{size}: an image counts as one; raise micro_batch_tokens or remove it"
            )

    def check_config(self, config: Any, name: str) -> None:
        """Raise `ValueError` for an architecture without an image classifier."""
        from model_files.trainable import check_image_task

        check_image_task(config, name)

    def save_companions(self, base_model: str, directory: "Path") -> None:
        """Save the image processor."""
        from training.data.images.processor import open_image_processor

        open_image_processor(base_model).save_pretrained(directory)

    def open_source(
        self, path: "Path", spec: "TrainingSpec", known: "KnownFile | None"
    ) -> "RowSource | None":
        """Open a folder of classes, an archive, or a file of rows; None for a folder of files."""
        from training.data.files.zip_files import is_zip
        from training.data.images.image_folder import ImageFolder, holds_row_files
        from training.data.images.image_rows import ImageRowFile
        from training.data.images.image_zip import ImageZip

        if path.is_dir():
            return None if holds_row_files(path) else ImageFolder(path)
        names = (*self.column_names, *spec.columns.values())
        if is_zip(path):
            return ImageZip(path, names, known)
        return ImageRowFile(path, names, known=known, columns=spec.columns)

    def open_data(self, spec: "TrainingSpec") -> "ImageData":
        """Open what reads images; raises `SettingError` for the base model."""
        return ImageData(spec)

    def open_objective(self, spec: "TrainingSpec", summary: Mapping[str, Any]) -> "ImageObjective":
        """Open the loss for the classes in the summary of the rows."""
        return ImageObjective(self, spec, summary)


class ImageData:
    """Rows as encoded images with labels."""

    max_length = 1

    def __init__(self, spec: "TrainingSpec") -> None:
        from training.data.images.image_rows import IMAGE_LAYOUT
        from training.data.images.processor import measure_output, open_image_processor
        from training.spec import name_source

        self.layout = IMAGE_LAYOUT
        self._spec = spec
        name = name_source(spec.base_model)
        self._image_size = measure_output(open_image_processor(spec.base_model), name)

    def describe_inputs(self) -> Mapping[str, Any]:
        """Return nothing: images are stored as they are, for all models."""
        return {}

    def open_reader(self, source: "RowSource", fallback: str | None) -> "ImageReader":  # noqa: ARG002 - each source names its columns
        """Open a reader for one source."""
        from training.data.images.image_rows import ImageReader

        return ImageReader(source, self._spec.columns)

    def summarise(self, train: "RowTable", validation: "RowTable | None") -> Mapping[str, Any]:
        """Decide the classes, and add the height and width of the model's images.

        Raises `DataError` for labels that do not fit, and `SettingError` for a metric that these
        rows do not have.
        """
        from training.data.labelled.label_survey import survey_labels
        from training.spec import SettingError

        settings = _read_settings(self._spec)
        classes = survey_labels(train, validation, settings.labels, _KIND, settings.class_weights)
        metrics = ("loss", *_choose_metrics(classes["labels"]))
        if self._spec.best_metric not in metrics:
            raise SettingError(
                f"best_metric is {self._spec.best_metric!r}, which needs more than {_NUM_TOP} "
                f"classes, and there are {len(classes['labels'])}; expected one of "
                f"{', '.join(metrics)}"
            )
        return {**classes, "unit": "images", "image_size": list(self._image_size)}


class ImageObjective:
    """The loss and the metrics of labelled images."""

    task: Task
    needs_references = False

    def __init__(
        self, task: ImageClassificationTask, spec: "TrainingSpec", summary: Mapping[str, Any]
    ) -> None:
        from training.data.images.image_rows import IMAGE_LAYOUT
        from training.losses.classification import Classes, LabelEncoder

        self.task = task
        self.layout = IMAGE_LAYOUT
        self._classes: Classes = Classes(
            _KIND, tuple(summary["labels"]), tuple(summary["class_weights"])
        )
        self._encoder = LabelEncoder(self._classes)
        self._base_model = spec.base_model
        self._settings = _read_settings(spec)
        self._height, self._width = summary["image_size"]

    def adapt_config(self, config: Any) -> None:
        """Set the classes and their names."""
        from training.losses.classification import set_classes

        set_classes(config, self._classes)

    def weigh_targets(self, rows: "RowTable", indices: Sequence[int]) -> float:
        """Return the number of rows, or the sum of the weights of their classes."""
        return self._encoder.weigh_rows(rows, indices)

    def collate(
        self,
        rows: Sequence[Any],
        layout: "BatchLayout",  # noqa: ARG002 - all images have one size
        *,
        is_training: bool,
    ) -> MicroBatch:
        """Decode and process images; `pixel_values` has the shape `[B, 3, height, width]`."""
        import torch

        from model_files.images.decoding import decode_image
        from training.data.images.augmentation import mix_images

        labels = self._encoder.encode([row.labels for row in rows])
        if not rows:
            pixel_values = torch.zeros(1, 3, self._height, self._width)
            return MicroBatch({"pixel_values": pixel_values}, labels)
        images = [decode_image(row.image) for row in rows]
        pixel_values = self._augment(images) if is_training else self._process(images)
        if is_training and self._settings.mixup_alpha:
            num_classes = len(self._classes.names)
            pixel_values, labels = mix_images(
                pixel_values, labels, num_classes, self._settings.mixup_alpha
            )
        return MicroBatch({"pixel_values": pixel_values}, labels)

    def compute(self, model: Any, batch: MicroBatch) -> BatchResult:
        """Compute the summed loss of the rows and their logits."""
        from training.losses.classification import compute_classification
        from training.model import cast_inputs, freeze_statistics

        freeze_statistics(model)
        inputs = cast_inputs(batch.inputs, next(model.parameters()).dtype)
        return compute_classification(model, MicroBatch(inputs, batch.labels), self._classes)

    def open_metrics(self, device: "torch.device") -> "ClassificationMetrics":
        """Open the metrics for the number of classes."""
        from training.losses.classification import ClassificationMetrics

        return ClassificationMetrics(self._classes, _choose_metrics(self._classes.names), device)

    def make_probe_inputs(self, config: Any) -> "Mapping[str, torch.Tensor]":  # noqa: ARG002 - the size is the processor's
        """Make fixed patterns from -1 to 1, of shape `[8, 3, height, width]`."""
        import torch

        shape = (8, 3, self._height, self._width)
        places = torch.arange(math.prod(shape)) * _STRIDE % 2001
        return {"pixel_values": (places.float() / 1000 - 1).reshape(shape)}

    @cached_property
    def _processor(self) -> Any:
        from training.data.images.processor import open_image_processor

        return open_image_processor(self._base_model)

    def _process(self, images: "Sequence[Image.Image]", **settings: Any) -> "torch.Tensor":
        from model_files.images.preprocessing import process_images

        return process_images(images, self._processor, **settings)

    def _augment(self, images: "Sequence[Image.Image]") -> "torch.Tensor":
        """Change images by the settings, one after the other; only their values are processed."""
        from training.data.images import augmentation
        from training.data.images.processor import find_resample

        is_cropped = self._settings.augmentation == "standard"
        changed = []
        for image in images:
            if is_cropped:
                resample = find_resample(self._processor)
                image = augmentation.crop_randomly(image, self._height, self._width, resample)
                image = augmentation.flip_randomly(image)
            if self._settings.randaugment:
                image = augmentation.apply_rand_augment(image)
            changed.append(image)
        if is_cropped:
            return self._process(changed, do_resize=False, do_center_crop=False, do_pad=False)
        return self._process(changed)


def _choose_metrics(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in _METRICS if name != "top5" or len(names) > _NUM_TOP)


def _read_settings(spec: "TrainingSpec") -> ImageSettings:
    return ImageSettings.model_validate(spec.task_settings)


TASK = ImageClassificationTask()
