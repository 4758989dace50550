"""The files that folders and glob patterns match."""

import logging
from pathlib import Path

import pytest

from training.data import sources
from training.data.faults import DataError
from training.data.readers import KnownFile
from training.data.sources import open_train_sources
from training.spec import TrainingSpec


def list_names(file: str | Path, **known: KnownFile) -> list[str]:
    spec = TrainingSpec(base_model="m", train_file=str(file))
    return [one.source.name for one in open_train_sources(spec, known)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    (folder / "deeper").mkdir(parents=True)
    for name in ("b.jsonl", "a.txt.gz", "c.PARQUET", ".hidden.jsonl", "README.md", "deeper/d.csv"):
        (folder / name).write_text("x")
    return folder


def test_a_folder_stands_for_its_files_of_rows(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert list_names(folder) == ["a.txt.gz", "b.jsonl", "c.PARQUET"]
    assert "of the folder 'rows', files without a suffix of rows are not read: \"README.md\"" in (
        caplog.text
    )


def test_a_pattern_stands_for_what_it_matches(folder: Path) -> None:
    assert list_names(folder / "*.jsonl") == ["b.jsonl"]
    assert list_names(folder / "[ab].*") == ["a.txt.gz", "b.jsonl"]
    assert list_names(folder / "**" / "*.csv") == ["d.csv"]
    assert list_names(folder / "README.*") == ["README.md"]  # a pattern may match any suffix


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder: Path) -> None:
    (folder / "[b].jsonl").write_text("x")
    assert list_names(folder / "[b].jsonl") == ["[b].jsonl"]


def test_what_was_uploaded_is_one_file_whatever_its_name(folder: Path) -> None:
    path = str(folder / "*")
    assert list_names(path, **{path: KnownFile("mine", 1, None)}) == ["mine"]


@pytest.mark.parametrize("place", ["deeper/deepest", "nothing*.jsonl"])
def test_a_place_without_rows_is_refused(folder: Path, place: str) -> None:
    (folder / "deeper" / "deepest").mkdir()
    with pytest.raises(DataError, match="no file of rows; expected files with .json, .jsonl"):
        list_names(folder / place)


def test_too_many_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_FILES", 2)
    with pytest.raises(DataError, match="rows' holds 3 files, expected at most 2: join them"):
        list_names(folder)
