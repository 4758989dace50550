"""Archives of images: folders of classes, rows that name images, and hostile archives."""

import gzip
import io
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_vision import build_tiny_vit, draw_shape, write_image_folder
from training.data.faults import DataError
from training.data.files import zip_files
from training.data.files.measuring import is_packed, measure_unpacked
from training.data.images.image_check import check_images
from training.data.images.image_zip import ImageZip
from training.data.prepare import prepare_data
from training.spec import TrainingSpec


def encode(colour: str, seed: int) -> bytes:
    buffer = io.BytesIO()
    draw_shape(colour, seed).save(buffer, "PNG")
    return buffer.getvalue()


RED, BLUE = encode("red", 1), encode("blue", 2)
NUMBERED = {"1.png": RED, "2.png": BLUE}
CLASSES = {"red/1.png": RED, "red/2.PNG": RED, "blue/1.png": BLUE}


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def count(path: Path) -> Any:
    return check_images(path, None, lambda *_: None)


@pytest.mark.parametrize(
    "files",
    [
        CLASSES,
        {f"shapes/{name}": content for name, content in CLASSES.items()},
        {**CLASSES, "__MACOSX/red/._1.png": b"x", "red/.DS_Store": b"x", "red/": b""},
    ],
)
def test_folders_are_classes(tmp_path: Path, files: dict[str, bytes]) -> None:
    path = write_zip(tmp_path / "shapes.zip", files)
    found = count(path)
    assert found.label_counts == {"blue": 1, "red": 2}
    assert found.num_rows == 3
    source = ImageZip(path, (), None)
    assert [record["image"] for _, record in source.read()] == [
        "blue/1.png",
        "red/1.png",
        "red/2.PNG",
    ]
    assert source.unit == "image"
    source.close()


@pytest.mark.parametrize("folder", ["", "shapes/"])
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("rows.csv", "image,label\nimages/1.png,red\nimages/./2.png,blue\n"),
        (
            "rows.jsonl",
            '{"file_name": "images/1.png", "label": "red"}\n'
            '{"file_name": "images/2.png", "label": "blue"}\n',
        ),
    ],
)
def test_file_of_rows_names_images(tmp_path: Path, folder: str, name: str, rows: str) -> None:
    files = {"images/1.png": RED, "images/2.png": BLUE, name: rows.encode()}
    path = write_zip(tmp_path / "a.zip", {f"{folder}{key}": files[key] for key in files})
    assert count(path).label_counts == {"blue": 1, "red": 1}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({**CLASSES, "red/notes.pdf": b"x"}, '^a.zip has other files than images: "red/notes.pdf"'),
        ({**CLASSES, "loose.png": RED}, 'images outside the folders of the classes: "loose.png"'),
        ({**CLASSES, "red/x/1.png": RED}, 'outside the folders of the classes: "red/x/1.png"'),
        ({**CLASSES, "../evil.png": RED}, 'the path "../evil.png", expected a path inside'),
        ({**CLASSES, "red/../../evil.png": RED}, "expected a path inside"),
        ({**CLASSES, "/etc/evil.png": RED}, "expected a path inside"),
        ({**CLASSES, "C:/evil.png": RED}, "expected a path inside"),
        ({**CLASSES, "red\\evil.png": RED}, "expected a path inside"),
        ({"a.csv": b"x", "b.csv": b"x", "1.png": RED}, 'several files of rows: "a.csv", "b.csv"'),
        ({"a.csv": b"image,label\n"}, "has no images"),
        ({}, "has no images|no ZIP archive"),
        ({"red/1.png": RED, "red/2.png": RED}, 'all images have the label "red"; expected at leas'),
        ({**CLASSES, "red/3.png": b"no image"}, '1 row: "red/3.png" is not an image.*image 4'),
        (
            {"a.csv": b"image,label\ngone.png,red\n1.png,red\n", "1.png": RED},
            'there is no file "gone.png" in the archive.*line 2',
        ),
        (
            {"a.csv": b"image,label\n../1.png,red\n", "1.png": RED},
            'there is no file "../1.png" in the archive',
        ),
        (
            {"a.csv": b"image,label\n1.png,red\n2.png,blue\n./1.png,red\n", **NUMBERED},
            '1 of 3 rows .*"./1.png" is the image of line 2 already, .*line 4',
        ),
        ({"a.csv.gz": gzip.compress(b"image,label\n"), **NUMBERED}, 'csv.gz" is compressed its'),
        ({"a.csv": gzip.compress(b"image,label\n"), **NUMBERED}, "^a.zip: .* is compressed its"),
        ({"a.parquet": b"PAR1", **NUMBERED}, "or in Parquet or Arrow; expected rows as CSV or"),
    ],
)
def test_other_content_is_named(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    path = write_zip(tmp_path / "a.zip", files)
    with pytest.raises(DataError, match=message):
        count(path)


def test_links_and_encrypted_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    for mode, flags, method, message in (
        (0o120777, 0, zipfile.ZIP_STORED, '"red/9.png" is a link or a device'),
        (0o100644, 1, zipfile.ZIP_STORED, '"red/9.png" is encrypted'),
        (0o100644, 0, zipfile.ZIP_LZMA, '"red/9.png" is compressed with method 14'),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in CLASSES.items():
                archive.writestr(name, content)
            info = zipfile.ZipInfo("red/9.png")
            info.external_attr = mode << 16
            info.compress_type = method
            archive.writestr(info, "/etc/passwd")
            info.flag_bits |= flags
        with pytest.raises(DataError, match=message):
            measure_unpacked(path, "a.zip", 1 << 30)


def test_files_that_share_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("red/1.png", "blue/1.png", "blue/2.png"):
            archive.writestr(name, RED)
        for info in archive.infolist():
            info.header_offset = 0
    with pytest.raises(DataError, match="a.zip has files that overlap"):
        measure_unpacked(path, "a.zip", 1 << 30)


def test_number_of_files_and_directory_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(tmp_path / "a.zip", CLASSES)
    monkeypatch.setattr(zip_files, "MAX_FILES", 2)
    with pytest.raises(DataError, match="a.zip has 3 files, expected at most 2"):
        measure_unpacked(path, "a.zip", 1 << 30)
    monkeypatch.setattr(zip_files, "_MAX_DIRECTORY_BYTES", 100)
    with pytest.raises(DataError, match="a.zip is no ZIP archive that can be read"):
        measure_unpacked(path, "a.zip", 1 << 30)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_files_may_be_larger_than_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    large = {"1.png": RED + bytes(17_500_000), "2.png": BLUE}
    rows = "image,label,note\n1.png,red,\n2.png,blue," + "x" * 1_000_000 + "\n"
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        for name, content in {**large, "rows.csv": rows.encode()}.items():
            archive.writestr(name, content)
    monkeypatch.setattr(zip_files, "_MAX_DIRECTORY_BYTES", 10_000)
    assert count(tmp_path / "a.zip").label_counts == {"blue": 1, "red": 1}


def test_size_that_a_file_declares_is_not_exceeded(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    bomb = {**CLASSES, "red/9.png": bytes(50_000_000)}
    content = bytearray(write_zip(path, bomb).read_bytes())
    assert measure_unpacked(path, "a.zip", 1 << 30) > 50_000_000
    with pytest.raises(DataError, match='"red/9.png" has 50,000,000 bytes, expected at most 20,0'):
        count(path)
    place = content.rfind(b"PK\x01\x02")  # the last file in the directory
    content[place + 24 : place + 28] = struct.pack("<I", 10)
    path.write_bytes(content)
    with pytest.raises(DataError, match='"red/9.png" cannot be unpacked|is not an image'):
        count(path)


@pytest.mark.parametrize("cut", [10, 200])
def test_damaged_archive_is_described(tmp_path: Path, cut: int) -> None:
    path = write_zip(tmp_path / "a.zip", CLASSES)
    assert is_packed(path.read_bytes()[:8])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match="^a.zip is no ZIP archive that can be read"):
        measure_unpacked(path, "a.zip", 1 << 30)


def test_archive_and_folder_have_the_same_rows(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "shapes", 3)
    path = write_zip(
        tmp_path / "shapes.zip",
        {f"shapes/{file.relative_to(folder)}": file.read_bytes() for file in folder.rglob("*.*")},
    )
    settings = {
        "base_model": str(build_tiny_vit(tmp_path / "vit")),
        "task": "image_classification",
    }
    tables = []
    for source in (folder, path):
        spec = TrainingSpec.model_validate({**settings, "train_file": str(source)})
        prepared = prepare_data(spec, tmp_path / "cache")
        assert prepared.summary["label_counts"] == {"blue": 3, "green": 3, "red": 3}
        tables.append(prepared.train.read_bytes())
    assert tables[0] == tables[1]
