import json
from pathlib import Path

import pytest
import torch
from transformers import CLIPImageProcessorPil, ConvNextImageProcessorPil

from model_files.images.preprocessing import process_images
from storage import durable
from tests.tiny_vision import build_tiny_convolutions, build_tiny_vit, draw_shape, make_processor
from training.base_model import UnknownModelError
from training.data.images.processor import measure_output, open_image_processor
from training.spec import SettingError


def test_processor_of_a_model_makes_its_size(tmp_path: Path) -> None:
    vit = open_image_processor(str(build_tiny_vit(tmp_path / "vit")))
    assert measure_output(vit, "vit") == (32, 32)
    values = process_images([draw_shape("red", 1), draw_shape("red", 2, (64, 20))], vit)
    assert values.shape == (2, 3, 32, 32)
    assert values.dtype == torch.float32
    cropping = open_image_processor(str(build_tiny_convolutions(tmp_path / "convnext", "convnext")))
    assert measure_output(cropping, "convnext") == (32, 32)


def test_processor_of_a_stored_model_has_its_settings(tmp_path: Path) -> None:
    folder = build_tiny_vit(tmp_path / "vit")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings["image_mean"] = [0.1, 0.2, 0.3]
    settings["auto_map"] = {"AutoImageProcessor": "code.Class"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    durable.publish_directory(folder, tmp_path / "stored")
    found = open_image_processor(str(tmp_path / "stored"))
    assert list(found.image_mean) == [0.1, 0.2, 0.3]
    assert not hasattr(found, "auto_map")


def test_model_without_processor_is_refused(tmp_path: Path) -> None:
    folder = build_tiny_vit(tmp_path / "vit")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(UnknownModelError, match="^base_model 'vit' has no image processor that c"):
        open_image_processor(str(folder))


def test_processor_that_keeps_the_shape_is_refused() -> None:
    keeps = make_processor(do_resize=False)
    with pytest.raises(SettingError, match="base_model 'vit' keeps the shape of an image"):
        measure_output(keeps, "vit")
    huge = make_processor(size={"height": 100_000, "width": 100_000})
    with pytest.raises(SettingError, match="has 'size' .*, expected 1 to 4,096 pixels$"):
        measure_output(huge, "vit")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": {"shortest_edge": 4096}}, "side of an image to 4,096 pixels, expected at most 7"),
        ({"size": {"shortest_edge": 32}, "crop_pct": 0.001}, "side of an image to 32,000 pixels"),
        ({"size": {"shortest_edge": 32}, "crop_pct": 0}, "has 'crop_pct' 0, expected more than 0"),
    ],
)
def test_processor_that_enlarges_too_much_is_refused(
    settings: dict[str, object], message: str
) -> None:
    make = ConvNextImageProcessorPil if "crop_pct" in settings else CLIPImageProcessorPil
    with pytest.raises(SettingError, match=message):
        measure_output(make(**settings), "model")
