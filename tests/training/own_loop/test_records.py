import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tiny_vision import COLOURS, write_image_folder
from training.data.faults import DataError
from training.data.prepare import prepare_data
from training.data.run_tables import link_data
from training.monitoring.data_report import report_data
from training.own_loop import records
from training.run.folder import RunFolder
from training.spec import TrainingSpec


def prepare(folder: Path, **settings: Any) -> Any:
    spec = TrainingSpec.model_validate({"base_model": "m", "loop": "a:b", **settings})
    return prepare_data(spec.pin_paths(folder), folder / "cache")


def read(path: Path | None) -> list[dict[str, Any]]:
    assert path is not None
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def write_rows(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_rows_of_any_shape_are_kept_in_order(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"{number}", "weight": number if number % 2 else 0.5, "more": {"at": [number]}}
        for number in range(700)
    ]
    rows[600]["late"] = True
    write_rows(tmp_path / "rows.jsonl", rows)
    found = read(prepare(tmp_path, train_file="rows.jsonl").train)
    assert [row["prompt"] for row in found] == [row["prompt"] for row in rows]
    assert [row["weight"] for row in found] == [row["weight"] for row in rows]
    assert found[600] == {**rows[600], "late": True}
    assert found[0]["late"] is None


def test_second_run_uses_the_cache_and_held_out_rows_follow_the_seed(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"number": number} for number in range(20)])
    first = prepare(tmp_path, train_file="rows.jsonl", validation_fraction=0.25)
    again = prepare(tmp_path, train_file="rows.jsonl", validation_fraction=0.25)
    other = prepare(tmp_path, train_file="rows.jsonl", validation_fraction=0.25, seed=1)
    assert (first.summary["cache"], again.summary["cache"]) == ("miss", "hit")
    train, held_out = read(first.train), read(first.validation)
    assert (len(train), len(held_out)) == (15, 5)
    assert sorted(row["number"] for row in train + held_out) == list(range(20))
    assert read(other.validation) != held_out
    assert first.summary["validation"]["num_rows"] == 5


def test_run_folder_gets_the_files(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\na,1\nb,2\n")
    write_rows(tmp_path / "test.jsonl", [{"text": "c", "label": 3}])
    prepared = prepare(tmp_path, train_file="rows.csv", validation_file="test.jsonl", max_rows=1)
    run = RunFolder(tmp_path / "run")
    link_data(prepared, run.data)
    report_data(run, prepared.summary)
    assert read(run.data / "train.parquet") == [{"text": "a", "label": "1"}]
    assert read(run.data / "validation.parquet") == [{"text": "c", "label": 3}]
    message = run.events.read()[0]["message"]
    assert message.startswith("1 rows (records), ")
    assert message.endswith("columns 'text', 'label'")


def test_images_are_bytes(tmp_path: Path) -> None:
    write_image_folder(tmp_path / "shapes", 2)
    prepared = prepare(tmp_path, train_file="shapes", task="image_classification")
    found = read(prepared.train)
    assert [row["label"] for row in found] == [colour for colour in COLOURS for _ in range(2)]
    assert found[0]["image"].startswith(b"\x89PNG")
    pq.write_table(pa.table({"img": [b"\xff\x00"], "label": [1]}), tmp_path / "rows.parquet")
    assert read(prepare(tmp_path, train_file="rows.parquet").train) == [
        {"img": b"\xff\x00", "label": 1}
    ]


def test_images_of_an_archive_are_bytes(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "shapes", 1)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]
    with zipfile.ZipFile(tmp_path / "shapes.zip", "w") as archive:
        for path, name in zip(files, names, strict=True):
            archive.write(path, name)
    settings = {"task": "image_classification"}
    found = read(prepare(tmp_path, train_file="shapes.zip", **settings).train)
    assert found == read(prepare(tmp_path, train_file="shapes", **settings).train)

    rows = "".join(f"{json.dumps({'file_name': name, 'size': 3})}\n" for name in names)
    with zipfile.ZipFile(tmp_path / "named.zip", "w") as archive:
        archive.writestr("rows.jsonl", rows)
        for path, name in zip(files, names, strict=True):
            archive.write(path, name)
    found = read(prepare(tmp_path, train_file="named.zip", **settings).train)
    assert found == [{"file_name": path.read_bytes(), "size": 3} for path in files]


def test_row_of_an_archive_without_a_path_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "named.zip", "w") as archive:
        archive.writestr("rows.jsonl", '{"picture": "a.png"}\n')
        archive.writestr("a.png", b"")
    with pytest.raises(DataError, match=r"no column has the path of an image .* 'image', 'img'"):
        prepare(tmp_path, train_file="named.zip", task="image_classification")


def test_column_of_several_types_is_refused_with_its_lines(tmp_path: Path) -> None:
    rows: list[Any] = [{"label": number} for number in range(300)]
    write_rows(tmp_path / "rows.jsonl", [*rows, {"label": "x"}])
    expected = r"^rows.jsonl: lines from 257 on: the column \"label\" has values of several types"
    with pytest.raises(DataError, match=expected) as caught:
        prepare(tmp_path, train_file="rows.jsonl")
    assert caught.value.role == "training"


def test_integer_that_does_not_fit_the_column_is_refused(tmp_path: Path) -> None:
    rows = [{"id": 2**53 + 1 + number} for number in range(256)]
    write_rows(tmp_path / "rows.jsonl", [*rows, {"id": 0.5}])
    expected = (
        r"^rows.jsonl: lines from 1 on: the column \"id\" has a value that does not fit double"
    )
    with pytest.raises(DataError, match=expected) as caught:
        prepare(tmp_path, train_file="rows.jsonl")
    assert caught.value.role == "training"


def test_batches_of_large_rows_are_limited_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_BATCH_BYTES", 1_000)
    sizes: list[int] = []
    convert = records._widen

    def widen(schema: Any, batch: Any, where: str) -> Any:
        sizes.append(len(batch))
        return convert(schema, batch, where)

    monkeypatch.setattr(records, "_widen", widen)
    rows = [{"text": "a" * size} for size in (400, 400, 400, 5_000, 10)]
    write_rows(tmp_path / "rows.jsonl", rows)
    assert read(prepare(tmp_path, train_file="rows.jsonl").train) == rows
    assert sizes == [2, 1, 1, 1]


def test_rows_that_are_no_objects_are_refused_together(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"a": 1}, [1], 2])
    with pytest.raises(DataError, match=r"2 of 3 rows cannot be used: .*lines 2, 3"):
        prepare(tmp_path, train_file="rows.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="found 0 rows, expected at least 1"):
        prepare(tmp_path, train_file="empty.jsonl")


def test_loop_without_rows_has_an_empty_file(tmp_path: Path) -> None:
    prepared = prepare(tmp_path)
    assert read(prepared.train) == []
    assert prepared.summary["num_rows"] == 0
    assert prepared.summary["name"] == "rows of its own"
