"""The files that folders and glob patterns match."""

import logging
import re
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


def test_folder_matches_its_files_of_rows(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list_names(folder) == ["a.txt.gz", "b.jsonl", "c.PARQUET"]
    assert "of the folder 'rows', files without a suffix of rows are not read: \"README.md\"" in (
        caplog.text
    )


def test_pattern_matches_files(folder: Path) -> None:
    assert list_names(folder / "*.jsonl") == ["b.jsonl"]
    assert list_names(folder / "[ab].*") == ["a.txt.gz", "b.jsonl"]
    assert list_names(folder / "**" / "*.csv") == ["d.csv"]
    assert list_names(folder / "README.*") == ["README.md"]  # a pattern may match any suffix


def test_existing_file_with_pattern_characters_is_read(folder: Path) -> None:
    (folder / "[b].jsonl").write_text("x")
    assert list_names(folder / "[b].jsonl") == ["[b].jsonl"]


def test_uploaded_file_is_one_file_under_any_name(folder: Path) -> None:
    path = str(folder / "*")
    assert list_names(path, **{path: KnownFile("mine", 1, None)}) == ["mine"]


@pytest.mark.parametrize(
    ("pattern", "verb"), [("deeper/deepest", "holds"), ("nothing*.jsonl", "matches")]
)
def test_path_without_rows_is_rejected(folder: Path, pattern: str, verb: str) -> None:
    (folder / "deeper" / "deepest").mkdir()
    expected = re.escape(f"{str(folder / pattern)!r} {verb} no file of rows; expected files with ")
    with pytest.raises(DataError, match=f"^{expected}.json, .jsonl"):
        list_names(folder / pattern)


def test_too_many_files_are_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_FILES", 2)
    with pytest.raises(DataError, match="^'.*/rows' holds 3 files, expected at most 2: join them$"):
        list_names(folder)
