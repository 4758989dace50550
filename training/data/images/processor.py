"""The image processor of a base model."""

from pathlib import Path
from typing import Any

from PIL import Image

from model_files.images.preprocessing import (
    PROCESSOR_NAME,
    load_image_processor,
    load_trusted_processor,
    measure_processed,
)
from storage import durable
from training.base_model import UnknownModelError
from training.spec import SettingError, name_source


def open_image_processor(base_model: str) -> Any:
    """Open the image processor of a base model.

    Of a model in a store, which any client may have created, only settings are used that cannot
    name a file or code. Raises `UnknownModelError` for a model without one.
    """
    try:
        if durable.is_published(Path(base_model)):
            return load_image_processor(Path(base_model))
        return load_trusted_processor(base_model)
    except (OSError, ValueError, ImportError, TypeError) as exc:
        reason = (str(exc).splitlines() or [type(exc).__name__])[0][:200]
        raise UnknownModelError(
            f"base_model {name_source(base_model)!r} has no image processor that can be loaded "
            f"({PROCESSOR_NAME}): {reason}"
        ) from exc


def measure_output(processor: Any, name: str) -> tuple[int, int]:
    """Return the height and the width of the images that a processor makes of all images.

    `name` is the model's name for messages. Raises `SettingError` if they depend on the image, or
    are too large.
    """
    try:
        return measure_processed(processor, f"base_model {name!r}")
    except ValueError as exc:
        raise SettingError(str(exc)) from exc


def find_resample(processor: Any) -> int:
    """Return Pillow's number of the filter with which a processor scales images."""
    resample = getattr(processor, "resample", None)
    return int(Image.Resampling.BILINEAR if resample is None else resample)
