"""The image processor of a model: its sizes, its mean and its standard deviation.

Training and serving process images with these functions, so that they see the same values.
"""

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from model_files.config_settings import clean_config
from model_files.images.decoding import MAX_ASPECT_RATIO, MAX_IMAGE_PIXELS
from model_files.json_files import read_object
from model_files.loading import CONFIG_NAME
from storage import durable

PROCESSOR_NAME = "preprocessor_config.json"
MAX_SIDE = 4096
"""Pixels of each side of the images that a model takes, at most."""
_SIZES = ("size", "crop_size", "pad_size")
# Two shapes of an image, by which a processor is recognised that keeps the shape.
_TRIED_SIZES = ((64, 48), (48, 64))


def load_image_processor(directory: Path) -> Any:
    """Load the image processor of an untrusted model, with settings that name no file or code.

    Raises `ValueError`, `OSError`, `ImportError` or `TypeError` for one that cannot be loaded.
    """
    with tempfile.TemporaryDirectory(prefix="tuneserve-processor-") as copy:
        for name in (CONFIG_NAME, PROCESSOR_NAME):
            durable.write_json(Path(copy) / name, clean_config(read_object(directory / name)))
        return load_trusted_processor(copy, local_files_only=True)


def load_trusted_processor(source: str, **options: Any) -> Any:
    """Load the image processor of a folder or of a model on the hub.

    It computes with Pillow, not with torchvision. Raises as `load_image_processor` does.
    """
    from transformers import AutoImageProcessor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # transformers leaves a file open
        return AutoImageProcessor.from_pretrained(
            source, backend="pil", trust_remote_code=False, **options
        )


def measure_processed(processor: Any, name: str) -> tuple[int, int]:
    """Return the height and the width of the images that a processor makes of all images.

    `name` names the model in messages. Raises `ValueError` if they depend on the image, or are too
    large.
    """
    _check_sizes(processor, name)
    _check_enlargement(processor, name)
    tried = [Image.new("RGB", size) for size in _TRIED_SIZES]
    shapes = {tuple(process_images([image], processor).shape[1:]) for image in tried}
    if len(shapes) > 1:
        raise ValueError(
            f"the image processor of {name} keeps the shape of an image; expected one that makes "
            "all images the same size: set 'size' to a height and a width in "
            f"{PROCESSOR_NAME}, or crop ('do_center_crop')"
        )
    ((_, height, width),) = shapes
    return height, width


def process_images(images: Sequence[Image.Image], processor: Any, **settings: Any) -> torch.Tensor:
    """Return the pixel values of RGB images in fp32, `[B, 3, height, width]`."""
    values = processor(list(images), return_tensors="pt", **settings)["pixel_values"]
    return values.float()  # type: ignore[no-any-return]


def _check_sizes(processor: Any, name: str) -> None:
    for key in _SIZES:
        size: Any = getattr(processor, key, None) or {}
        for side in dict(size).values():
            if side is not None and not 1 <= int(side) <= MAX_SIDE:
                raise ValueError(
                    f"the image processor of {name} has {key!r} {dict(size)}, expected 1 to "
                    f"{MAX_SIDE:,} pixels"
                )


def _check_enlargement(processor: Any, name: str) -> None:
    """Raise `ValueError` if it could scale an image that may be used to more than any may have.

    A processor that scales the shorter side, and crops the result, makes the longer side up to
    `MAX_ASPECT_RATIO` times as long. With `crop_pct`, it scales to the size divided by that.
    """
    size = dict(getattr(processor, "size", None) or {})
    share: Any = getattr(processor, "crop_pct", None)
    if share is not None and not (isinstance(share, int | float) and 0 < share <= 1):
        raise ValueError(
            f"the image processor of {name} has 'crop_pct' {share!r}, expected more than 0, and at "
            "most 1"
        )
    if share is None and (not size.get("shortest_edge") or size.get("longest_edge")):
        return
    side = max((int(one) for one in size.values() if one is not None), default=0) / (share or 1)
    if side**2 * MAX_ASPECT_RATIO > MAX_IMAGE_PIXELS:
        max_side = int((MAX_IMAGE_PIXELS / MAX_ASPECT_RATIO) ** 0.5)
        raise ValueError(
            f"the image processor of {name} scales the shorter side of an image to {side:,.0f} "
            f"pixels, expected at most {max_side}, because the other may be {MAX_ASPECT_RATIO} "
            f"times as long: set 'size' to a height and a width in {PROCESSOR_NAME}"
        )
