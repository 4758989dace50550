import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_files.images.decoding import decode_image
from tests.tiny_vision import build_tiny_vit, draw_shape, write_image_folder
from training.data.faults import DataError
from training.data.images.image_rows import IMAGE_LAYOUT, choose_image_columns
from training.data.prepare import PreparedData, prepare_data
from training.data.readers import KnownFile
from training.data.row_table import RowTable
from training.spec import TrainingSpec


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_vit(tmp_path_factory.mktemp("models") / "vit")


def prepare(model: Path, source: Path, known: Any = None, **settings: Any) -> PreparedData:
    spec = TrainingSpec.model_validate(
        {
            "base_model": str(model),
            "train_file": str(source),
            "task": "image_classification",
            **settings,
        }
    )
    return prepare_data(spec, model.parent / "cache", known=known)


def write_rows(file: Path, rows: Sequence[Any]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def encode(colour: str, seed: int) -> bytes:
    buffer = BytesIO()
    draw_shape(colour, seed).save(buffer, "PNG")
    return buffer.getvalue()


def test_folder_becomes_a_table_of_encoded_images(tmp_path: Path, vit: Path) -> None:
    folder = write_image_folder(tmp_path / "shapes", 3)
    prepared = prepare(vit, folder, validation_fraction=0.34)
    assert prepared.summary["labels"] == ["blue", "green", "red"]
    assert prepared.summary["image_size"] == [32, 32]
    assert prepared.summary["num_rows"] == prepared.summary["num_tokens"] == 6
    assert prepared.summary["validation"]["num_rows"] == 3
    assert prepare(vit, folder, validation_fraction=0.34).summary["cache"] == "hit"
    rows = RowTable(prepare(vit, folder).train, IMAGE_LAYOUT)
    (row,) = rows.read([4])
    assert bytes(row.image) == (folder / "green" / "001.png").read_bytes()
    assert row.labels == ("green",)


def test_rows_name_images_in_the_folder_of_their_file(tmp_path: Path, vit: Path) -> None:
    folder = write_image_folder(tmp_path / "shapes", 1)
    lines = ["file_name,label", "red/000.png,r", "blue/000.png,b"]
    (folder / "rows.csv").write_text("\n".join(lines))
    for source in (folder / "rows.csv", folder):  # a folder with a file of rows is read by it
        prepared = prepare(vit, source)
        assert prepared.summary["labels"] == ["b", "r"]
        assert prepared.summary["format"] == "file_name, with label"
        assert prepared.summary["cache"] == ("miss" if source.suffix else "hit")
    draw_shape("green", 5).save(folder / "red" / "000.png")
    assert prepare(vit, folder).summary["cache"] == "miss"


@pytest.mark.parametrize("is_struct", [True, False])
def test_parquet_holds_images(tmp_path: Path, vit: Path, is_struct: bool) -> None:
    images = [encode("red", 1), encode("blue", 2)]
    values = [{"bytes": one, "path": "a.png"} for one in images] if is_struct else images
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"image": values, "label": [0, 1]}), file)
    known = {str(file): KnownFile("upload.parquet", file.stat().st_size, None)}
    prepared = prepare(vit, file, known)
    rows = RowTable(prepared.train, IMAGE_LAYOUT).read([0, 1])
    assert [bytes(row.image) for row in rows] == images
    assert decode_image(rows[0].image).size == (40, 36)
    assert prepared.summary["labels"] == ["0", "1"]


def test_row_of_parquet_may_exceed_the_limit_of_texts(tmp_path: Path, vit: Path) -> None:
    image = encode("red", 1) + b"\0" * 5_000_000
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"image": [image, image], "label": ["a", "b"]}), file)
    (row,) = RowTable(prepare(vit, file).train, IMAGE_LAYOUT).read([1])
    assert len(row.image) == len(image)


def test_upload_with_paths_is_refused(tmp_path: Path, vit: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [{"image": "a.png", "label": "a"}])
    known = {str(file): KnownFile("upload.jsonl", file.stat().st_size, None)}
    with pytest.raises(DataError, match="^upload.jsonl: the column 'image' has paths, and an up"):
        prepare(vit, file, known)


def test_faults_of_images_are_reported_together(tmp_path: Path, vit: Path) -> None:
    (tmp_path / "good.png").write_bytes(encode("red", 1))
    (tmp_path / "bad.png").write_bytes(b"text")
    names = ["good.png", "bad.png", "gone.png", "../up.png", "good.png"]
    rows = [{"image": name, "label": "a"} for name in names]
    rows[4]["label"] = ["a", "b"]  # type: ignore[assignment]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataError) as caught:
        prepare(vit, file)
    message = str(caught.value)
    assert message.startswith("rows.jsonl: 4 of 5 rows cannot be used: ")
    assert '1 row: "bad.png" is not an image, expected one of ' in message
    assert "(line 3)" in message
    assert "(line 4)" in message
    assert "1 row: it has 2 labels, expected the name of one class (line 5)" in message


def test_damaged_image_of_a_folder_is_named(tmp_path: Path, vit: Path) -> None:
    folder = write_image_folder(tmp_path / "shapes", 2)
    (folder / "green" / "001.png").write_bytes(b"text")
    with pytest.raises(DataError, match=r'^shapes: 1 of 6 rows .*"green/001.png" is.*\(image 4\)$'):
        prepare(vit, folder)


def test_single_class_is_refused(tmp_path: Path, vit: Path) -> None:
    (tmp_path / "shapes" / "red").mkdir(parents=True)
    draw_shape("red", 1).save(tmp_path / "shapes" / "red" / "a.png")
    with pytest.raises(DataError, match='all rows have the label "red", expected rows of at least'):
        prepare(vit, tmp_path / "shapes")


@pytest.mark.parametrize(
    ("record", "mapped", "message"),
    [
        ({"image": ""}, {}, "^the first row has no column for the label: "),
        ({"picture": "", "label": ""}, {}, "^the first row has no column for the image: "),
        ({"image": ""}, {"text": "image"}, '^columns has the keys "text"; the keys are "image", '),
    ],
)
def test_missing_column_is_named(record: Any, mapped: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        choose_image_columns(record, mapped)


def test_columns_may_be_named() -> None:
    record = {"picture": "", "kind": ""}
    assert choose_image_columns(record, {"image": "picture", "label": "kind"}) == (
        "picture",
        "kind",
    )
