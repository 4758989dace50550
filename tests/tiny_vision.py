"""Tiny vision models with their image processors, and images of coloured shapes, for tests."""

import random
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    ConvNextImageProcessorPil,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

SIZE = 32
COLOURS = {"blue": (30, 60, 200), "green": (40, 180, 60), "red": (200, 40, 40)}


def build_tiny_vit(folder: Path, **config: Any) -> Path:
    """Write a random ViT of 32 × 32 pixels in patches of 4 × 4, with two classes of its own."""
    sizes = {
        "image_size": SIZE,
        "patch_size": 4,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "initializer_range": 0.2,  # so large that a few steps are enough to learn
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **config,
    }
    torch.manual_seed(0)
    return _save(ViTForImageClassification(ViTConfig(**sizes)), make_processor(), folder)


def build_tiny_convolutions(folder: Path, kind: str) -> Path:
    """Write a random ConvNeXt or ResNet, each with stages of several widths."""
    torch.manual_seed(0)
    if kind == "convnext":
        config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
        model: Any = ConvNextForImageClassification(config)
    else:
        config = ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
        )
        model = ResNetForImageClassification(config)
    processor = ConvNextImageProcessorPil(size={"shortest_edge": SIZE}, crop_pct=0.875)
    return _save(model, processor, folder)


def make_processor(**settings: Any) -> Any:
    return ViTImageProcessorPil(**{"size": {"height": SIZE, "width": SIZE}, **settings})


def _save(model: Any, processor: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def draw_shape(colour: str, seed: int, size: tuple[int, int] = (40, 36)) -> Image.Image:
    """Draw a square or a circle of a colour at a random place on a grey background."""
    chosen = random.Random(seed)
    image = Image.new("RGB", size, (chosen.randrange(90, 160),) * 3)
    left, top, side = chosen.randrange(4, 10), chosen.randrange(4, 10), chosen.randrange(16, 22)
    draw = ImageDraw.Draw(image)
    shape = draw.rectangle if seed % 2 else draw.ellipse
    shape((left, top, left + side, top + side), fill=COLOURS[colour])
    return image


def write_image_folder(folder: Path, num_images: int) -> Path:
    """Write so many images of each colour, in a sub-folder of its name, as PNG and JPEG."""
    for place, colour in enumerate(COLOURS):
        (folder / colour).mkdir(parents=True)
        for number in range(num_images):
            image = draw_shape(colour, place * 1000 + number)
            suffix = "jpg" if number % 3 == 2 else "png"
            image.save(folder / colour / f"{number:03}.{suffix}", quality=90)
    return folder


def encode(image: Image.Image, kind: str = "PNG") -> bytes:
    """Return an image in a format of files."""
    buffer = BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def declare_png(width: int, height: int) -> bytes:
    """Write the header of a PNG of a few bytes that declares a size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 10) + b"IDAT" + bytes(10)
