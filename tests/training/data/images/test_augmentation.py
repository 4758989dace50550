from collections.abc import Callable

import pytest
import torch
from PIL import Image

from tests.tiny_vision import draw_shape
from training.data.images import augmentation


@pytest.mark.parametrize(
    "change",
    [
        lambda image: augmentation.crop_randomly(image, 24, 20, 2),
        augmentation.flip_randomly,
        augmentation.apply_rand_augment,
    ],
)
def test_change_repeats_with_the_seed(change: Callable[[Image.Image], Image.Image]) -> None:
    image = draw_shape("red", 1)
    found = []
    for seed in (*range(12), 0):
        torch.manual_seed(seed)
        found.append(change(image))
    assert found[0].tobytes() == found[-1].tobytes()
    assert len({one.tobytes() for one in found}) > 1
    assert {one.mode for one in found} == {"RGB"}


@pytest.mark.parametrize("size", [(40, 36), (1, 1), (300, 3), (3, 300)])
def test_crop_has_the_size_of_the_model(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    cropped = augmentation.crop_randomly(Image.new("RGB", size), 24, 20, 3)
    assert cropped.size == (20, 24)


def test_all_operations_keep_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    image = draw_shape("green", 3)
    torch.manual_seed(0)
    found = [augmentation.apply_rand_augment(image) for _ in range(200)]
    assert {one.size for one in found} == {image.size}
    assert len({one.tobytes() for one in found}) > 60


def test_mixup_mixes_each_row_with_another() -> None:
    torch.manual_seed(0)
    pixels = torch.tensor([0.0, 1.0, 2.0]).reshape(3, 1, 1, 1).expand(3, 3, 2, 2)
    mixed, shares = augmentation.mix_images(pixels, torch.tensor([0, 1, 2]), 3, 0.4)
    share = float(shares[0, 0])
    assert 0 < share < 1
    assert shares.sum(-1).tolist() == pytest.approx([1, 1, 1])
    assert shares[0, 2] == pytest.approx(1 - share)
    assert mixed[0, 0, 0, 0] == pytest.approx((1 - share) * 2)
    assert mixed[2, 0, 0, 0] == pytest.approx(share * 2 + (1 - share) * 1)
