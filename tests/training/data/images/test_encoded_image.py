import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from model_files.images import decoding
from model_files.images.decoding import decode_image
from tests.tiny_vision import declare_png, draw_shape, encode
from training.data.faults import RowFault
from training.data.images.encoded_image import (
    check_image,
    find_image_file,
    find_image_path,
    get_image_bytes,
    read_image_file,
)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_formats_are_decoded_as_rgb(kind: str) -> None:
    encoded = encode(draw_shape("red", 1), kind)
    check_image(encoded, "a.png")
    assert decode_image(encoded).mode == "RGB"
    assert decode_image(memoryview(encoded)).size == (40, 36)


def test_photograph_is_turned_upright() -> None:
    image = Image.new("RGB", (20, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    buffer = BytesIO()
    image.save(buffer, "JPEG", exif=exif)
    assert decode_image(buffer.getvalue()).size == (10, 20)


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (b"no image", '^"a.png" is not an image, expected one of JPEG, PNG, WEBP, BMP, GIF$'),
        (b"", "is not an image"),
        (encode(draw_shape("red", 1))[:-40], '^"a.png" cannot be decoded '),
        (encode(draw_shape("red", 1), "JPEG")[:400], '^"a.png" cannot be decoded '),
        (declare_png(8000, 8000), "has 8,000 × 8,000 pixels, expected at most 50,000,000 in total"),
        (declare_png(90_000, 90_000), "has more than 50,000,000 pixels, the limit for an image$"),
        (declare_png(10_000, 1), "10,000 × 1 pixels, expected one side at most 100 times the oth"),
        (encode(draw_shape("red", 1), "TIFF"), "is not an image"),
    ],
)
def test_unusable_image_is_described(encoded: bytes, message: str) -> None:
    with pytest.raises(RowFault, match=message):
        check_image(encoded, "a.png")


def test_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_IMAGE_BYTES", 10)
    (tmp_path / "a.png").write_bytes(b"x" * 11)
    with pytest.raises(RowFault, match='^"a.png" has 11 bytes, expected at most 10 of an image$'):
        read_image_file(tmp_path / "a.png", "a.png")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/passwd", "is an absolute path, expected one relative"),
        ("C:/a.png", "is an absolute path"),
        ("../outside.png", "is no path of an image in the rows' folder"),
        ("sub/../../outside.png", "is no path of an image"),
        ("", "is no path of an image"),
        ("a\0.png", "is no path of an image"),
        ("link.png", "is a link out of the rows' folder"),
        ("linked/outside.png", "is a link out of the rows' folder"),
        ("loop", "cannot be opened|there is no file"),
        ("gone.png", '^there is no file "gone.png" in the rows\' folder$'),
        ("sub", "there is no file"),
    ],
)
def test_path_stays_in_the_folder(tmp_path: Path, path: str, message: str) -> None:
    folder, outside = tmp_path / "rows", tmp_path / "other"
    (folder / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "outside.png").write_bytes(b"secret")
    (folder / "link.png").symlink_to(outside / "outside.png")
    (folder / "linked").symlink_to(outside)
    (folder / "loop").symlink_to(folder / "loop")
    with pytest.raises(RowFault, match=message):
        find_image_file(folder, path)


def test_values_of_image_columns() -> None:
    coded = {"base64": base64.b64encode(b"abc").decode()}
    images: list[Any] = [b"abc", coded, {"bytes": b"abc"}, {"bytes": coded, "path": "a.png"}]
    for value in images:
        assert find_image_path(value) is None
        assert get_image_bytes(value, "image") == b"abc"
    assert find_image_path("a.png") == find_image_path({"path": "a.png"}) == "a.png"
    faulty: list[Any] = [(None, "null"), (5, "5"), ({"base64": "?"}, "not base64")]
    for value, message in faulty:
        with pytest.raises(RowFault, match=message):
            get_image_bytes(value, "image")
