"""Random changes of training images: cropping, flipping, RandAugment and mixup.

All randomness is that of torch's default generator, which is seeded before each micro batch.
"""

import math
from collections.abc import Callable

import torch
from PIL import Image, ImageEnhance, ImageOps

_CROP_AREA = (0.08, 1.0)
_CROP_RATIO = (3 / 4, 4 / 3)
_CROP_TRIES = 10

NUM_OPERATIONS = 2
"""Operations of RandAugment on each image."""
MAGNITUDE = 0.3
"""Their strength, of 0 to 1; the paper's 9 of 30 levels."""
_FILL = (128, 128, 128)
_Operation = Callable[[Image.Image, float], Image.Image]


def crop_randomly(image: Image.Image, height: int, width: int, resample: int) -> Image.Image:
    """Crop a part of random area and aspect ratio, and scale it to a size.

    The ranges are those of Szegedy et al. (2015), as in torchvision's RandomResizedCrop.
    """
    box = _choose_box(*image.size)
    return image.resize((width, height), Image.Resampling(resample), box=box)


def _choose_box(width: int, height: int) -> tuple[int, int, int, int]:
    for _ in range(_CROP_TRIES):
        area = width * height * _draw(*_CROP_AREA)
        ratio = math.exp(_draw(*map(math.log, _CROP_RATIO)))
        own_width, own_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < own_width <= width and 0 < own_height <= height:
            left, top = _pick(width - own_width + 1), _pick(height - own_height + 1)
            return left, top, left + own_width, top + own_height
    own_width = min(width, max(1, round(height * _CROP_RATIO[1])))
    own_height = min(height, max(1, round(width / _CROP_RATIO[0])))
    left, top = (width - own_width) // 2, (height - own_height) // 2
    return left, top, left + own_width, top + own_height


def flip_randomly(image: Image.Image) -> Image.Image:
    """Mirror an image with a probability of one half."""
    return ImageOps.mirror(image) if _pick(2) else image


def apply_rand_augment(image: Image.Image) -> Image.Image:
    """Apply random operations of RandAugment (Cubuk et al., 2019) of medium strength."""
    for _ in range(NUM_OPERATIONS):
        operation = _OPERATIONS[_pick(len(_OPERATIONS))]
        sign = 1 if _pick(2) else -1
        image = operation(image, sign * MAGNITUDE)
    return image


def mix_images(
    pixel_values: torch.Tensor, labels: torch.Tensor, num_classes: int, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix each image and label with those of another row (mixup, Zhang et al., 2017).

    `pixel_values` has the shape `[B, 3, height, width]`, `labels` `[B]`. Returns the mixed images,
    and the shares of the classes in fp32, `[B, num_classes]`.
    """
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    targets = torch.nn.functional.one_hot(labels, num_classes).float()
    mixed = share * pixel_values + (1 - share) * pixel_values.roll(1, 0)
    return mixed, share * targets + (1 - share) * targets.roll(1, 0)


def _draw(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def _pick(number: int) -> int:
    return int(torch.randint(number, ()))


def _transform(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=_FILL)


def _translate(image: Image.Image, right: float, down: float) -> Image.Image:
    """Move an image by shares of its sides."""
    return _transform(image, 1, 0, right * image.width, 0, 1, down * image.height)


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> _Operation:
    return lambda image, strength: kind(image).enhance(1 + 0.9 * strength)


# Each takes a strength from -1 to 1; its sign has no meaning where it is not used.
_OPERATIONS: tuple[_Operation, ...] = (
    lambda image, strength: image,  # noqa: ARG005 - one of the paper's operations
    lambda image, strength: _transform(image, 1, 0.3 * strength, 0, 0, 1, 0),
    lambda image, strength: _transform(image, 1, 0, 0, 0.3 * strength, 1, 0),
    lambda image, strength: _translate(image, 0.45 * strength, 0),
    lambda image, strength: _translate(image, 0, 0.45 * strength),
    lambda image, strength: image.rotate(30 * strength, fillcolor=_FILL),
    _enhance(ImageEnhance.Brightness),
    _enhance(ImageEnhance.Color),
    _enhance(ImageEnhance.Contrast),
    _enhance(ImageEnhance.Sharpness),
    lambda image, strength: ImageOps.posterize(image, 8 - round(4 * abs(strength))),
    lambda image, strength: ImageOps.solarize(image, round(256 * (1 - abs(strength)))),
    lambda image, strength: ImageOps.autocontrast(image),  # noqa: ARG005
    lambda image, strength: ImageOps.equalize(image),  # noqa: ARG005
)
