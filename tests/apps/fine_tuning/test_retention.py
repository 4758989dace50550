"""Automatic removal of data that is no longer needed."""

import os
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from apps.fine_tuning.retention import enforce_retention, start_retention
from apps.fine_tuning.validation.row_validation import prepare_rows
from storage import durable
from storage.layout import StorageLayout
from tests.apps.conftest import add_job
from training.data.token_cache import MAX_CACHE_BYTES
from training.spec import TrainingSpec


def add_entry(cache: Path, name: str, size: int, used_at: int) -> None:
    entry = cache / name
    entry.mkdir(parents=True)
    (entry / "rows").write_bytes(bytes(size))
    durable.seal_directory(entry)
    os.utime(entry / durable.MANIFEST_NAME, (used_at, used_at))


def test_token_cache_is_pruned_to_its_size_limit(layout: StorageLayout) -> None:
    for number in range(4):
        add_entry(layout.token_cache, f"entry-{number}", 10_000, number)
    enforce_retention(layout, 25_000)
    assert sorted(path.name for path in layout.token_cache.iterdir()) == ["entry-2", "entry-3"]
    enforce_retention(layout, 0)
    assert [path.name for path in layout.token_cache.iterdir()] == ["entry-3"], (
        "the newest entry, which may be in use, was removed"
    )


def test_only_retention_setting_bounds_token_cache(
    layout: StorageLayout, tiny_model: Path, tmp_path: Path
) -> None:
    entry = layout.token_cache / "entry"
    entry.mkdir(parents=True)
    with (entry / "rows").open("wb") as file:
        file.truncate(MAX_CACHE_BYTES + 1)  # a sparse file, which uses no disk space
    durable.write_json(entry / durable.MANIFEST_NAME, {"files": {}})
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "fox"}\n')
    spec = TrainingSpec(base_model=str(tiny_model), train_file=str(rows))
    prepare_rows(layout, spec)
    assert entry.is_dir(), "preparing rows pruned the cache to the default size"
    enforce_retention(layout, MAX_CACHE_BYTES)
    assert not entry.exists()


def test_retention_continues_after_unexpected_error(
    layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Event()
    calls = count()

    def fail(*_: object) -> None:
        if next(calls):
            again.set()
        raise KeyError("unexpected")

    monkeypatch.setattr("apps.fine_tuning.retention.prune_cache", fail)
    stopped = start_retention(layout, 0, interval_s=0.01)
    assert again.wait(30)
    stopped.set()


def test_scratch_folders_of_killed_processes_are_removed(layout: StorageLayout) -> None:
    for name in (".deleted-0001", ".upload-x", ".added-x"):
        (layout.models / name).mkdir()
        (layout.models / name / ".lock").touch()  # no process holds this lock any more
    (layout.files / ".upload-x").mkdir()
    (layout.files / ".upload-x" / ".lock").touch()
    layout.store.aliases.write_text("{")
    enforce_retention(layout, 10**9)
    assert [path.name for path in layout.models.iterdir()] == ["tiny"]
    assert list(layout.files.iterdir()) == []


def test_old_temporary_files_of_killed_processes_are_removed(
    layout: StorageLayout,
) -> None:
    run = add_job(layout, "tiny")
    old, new = run.path / ".run.json.abcd1234", run.path / ".run.json.abcd1235"
    probe = layout.root / ".probe-abcd1234"
    for path in (old, new, probe):
        path.touch()
    for path in (old, probe):
        os.utime(path, (1, 1))
    enforce_retention(layout, 10**9)
    assert [path.exists() for path in (old, new, probe)] == [False, True, False]
    assert run.read_record().status == "queued"
