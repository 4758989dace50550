"""The image processor of a base model: its sizes, its mean and its standard deviation."""

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from model_files import loading
from model_files.config_settings import clean_config
from model_files.json_files import read_object
from storage import durable
from training.base_model import UnknownModelError
from training.spec import SettingError, name_source

PROCESSOR_NAME = "preprocessor_config.json"
MAX_SIDE = 4096
"""Pixels of each side of the images that a model takes, at most."""
_SIZES = ("size", "crop_size", "pad_size")
# Two shapes of an image, by which a processor is recognised that keeps the shape.
_TRIED_SIZES = ((64, 48), (48, 64))


def open_image_processor(base_model: str) -> Any:
    """Open the image processor of a base model; it computes with Pillow, not with torchvision.

    Of a model in a store, which any client may have created, only settings are used that cannot
    name a file or code. Raises `UnknownModelError` for a model without one.
    """
    try:
        if durable.is_published(Path(base_model)):
            return _open_cleaned(Path(base_model))
        return _load(base_model)
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
    _check_sizes(processor, name)
    tried = [Image.new("RGB", size) for size in _TRIED_SIZES]
    shapes = {tuple(process([image], processor).shape[1:]) for image in tried}
    if len(shapes) > 1:
        raise SettingError(
            f"the image processor of base_model {name!r} keeps the shape of an image; expected one "
            f"that makes all images the same size: set 'size' to a height and a width in "
            f"{PROCESSOR_NAME}, or crop ('do_center_crop')"
        )
    ((_, height, width),) = shapes
    return height, width


def process(images: Sequence[Image.Image], processor: Any, **settings: Any) -> torch.Tensor:
    """Return the pixel values of RGB images in fp32, `[B, 3, height, width]`."""
    values = processor(list(images), return_tensors="pt", **settings)["pixel_values"]
    return values.float()  # type: ignore[no-any-return]


def find_resample(processor: Any) -> int:
    """Return Pillow's number of the filter with which a processor scales images."""
    resample = getattr(processor, "resample", None)
    return int(Image.Resampling.BILINEAR if resample is None else resample)


def _open_cleaned(folder: Path) -> Any:
    with tempfile.TemporaryDirectory(prefix="tuneserve-processor-") as copy:
        for name in (loading.CONFIG_NAME, PROCESSOR_NAME):
            durable.write_json(Path(copy) / name, clean_config(read_object(folder / name)))
        return _load(copy, local_files_only=True)


def _load(source: str, **options: Any) -> Any:
    from transformers import AutoImageProcessor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # transformers leaves a file open
        return AutoImageProcessor.from_pretrained(
            source, backend="pil", trust_remote_code=False, **options
        )


def _check_sizes(processor: Any, name: str) -> None:
    for key in _SIZES:
        size: Any = getattr(processor, key, None) or {}
        for side in dict(size).values():
            if side is not None and not 1 <= int(side) <= MAX_SIDE:
                raise SettingError(
                    f"the image processor of base_model {name!r} has {key!r} {dict(size)}, "
                    f"expected 1 to {MAX_SIDE:,} pixels"
                )
