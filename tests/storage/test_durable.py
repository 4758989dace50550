import json
import multiprocessing
import os
from pathlib import Path

import pytest

from storage import durable
from storage.layout import StorageLayout, check_id, new_id, open_storage
from storage.manifest import verify_directory


def test_write_json_replaces_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    durable.write_json(path, {"status": "queued", "name": "Zoë"})
    durable.write_json(path, {"status": "running"})
    assert durable.read_json(path) == {"status": "running"}
    assert os.listdir(tmp_path) == ["run.json"]


def test_failed_write_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    durable.write_json(path, {"status": "queued"})
    with pytest.raises(TypeError):
        durable.write_json(path, {"status": object()})
    assert durable.read_json(path) == {"status": "queued"}
    assert os.listdir(tmp_path) == ["run.json"]


def test_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert durable.read_json_lines(path) == []
    assert durable.read_last_json_line(path) is None
    durable.append_json_line(path, {"n": 1})
    durable.append_json_line(path, {"n": 2})
    with path.open("a") as file:
        file.write('{"n": 3')
    assert durable.read_json_lines(path) == [{"n": 1}, {"n": 2}]
    assert durable.read_last_json_line(path) == {"n": 2}


def test_truncated_line_does_not_affect_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    durable.append_json_line(path, {"n": 1})
    with path.open("a") as file:
        file.write('{"n": 2, "mess')
    durable.append_json_line(path, {"n": 3})
    assert durable.read_json_lines(path) == [{"n": 1}, {"n": 3}]
    assert durable.read_last_json_line(path) == {"n": 3}


def _append_many(path: Path, writer: int) -> None:
    for number in range(200):
        durable.append_json_line(path, {"writer": writer, "number": number, "pad": "x" * 500})


def test_lines_of_two_processes_do_not_interleave(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(path, writer)) for writer in range(2)]
    for process in writers:
        process.start()
    for process in writers:
        process.join(30)
    lines = durable.read_json_lines(path)
    assert len(lines) == 400
    assert [line["number"] for line in lines if line["writer"] == 0] == list(range(200))


def test_directory_without_manifest_is_not_published(tmp_path: Path) -> None:
    building, final = tmp_path / ".new", tmp_path / "model"
    (building / "sub").mkdir(parents=True)
    (building / "a.txt").write_text("a")
    (building / "sub" / "b.txt").write_text("b")
    assert not durable.is_published(building)
    durable.publish_directory(building, final)
    assert durable.is_published(final)
    assert not building.exists()
    assert set(durable.read_json(final / "manifest.json")["files"]) == {"a.txt", "sub/b.txt"}
    verify_directory(final)


@pytest.mark.parametrize("damage", ["change", "remove"])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    building, final = tmp_path / ".new", tmp_path / "model"
    building.mkdir()
    (building / "weights").write_text("right")
    durable.publish_directory(building, final)
    if damage == "change":
        (final / "weights").write_text("wrong")
    else:
        (final / "weights").unlink()
    with pytest.raises(
        durable.DamagedDirectoryError, match=r"^model: 'weights' (differs|is in the manifest)"
    ):
        verify_directory(final)


def test_published_directory_is_not_replaced(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    durable.publish_directory(tmp_path / "one", tmp_path / "model")
    with pytest.raises(FileExistsError, match=r"^'model'"):
        durable.publish_directory(tmp_path / "two", tmp_path / "model")


@pytest.mark.parametrize(
    "bad", ["", ".", "..", "a/b", "../x", "/etc", "a\\b", "x" * 129, "a\n", "-a"]
)
def test_path_is_not_a_valid_id(bad: str) -> None:
    with pytest.raises(ValueError, match=r"^'.*' is not a valid id: expected"):
        StorageLayout(Path("/nowhere")).run(bad)


def test_new_ids_are_valid_differ_and_sort_by_time() -> None:
    ids = [new_id("ftjob") for _ in range(100)]
    assert len(set(ids)) == 100
    assert ids == sorted(ids)
    assert all(check_id(identifier) == identifier for identifier in ids)


def test_open_storage_creates_folders(tmp_path: Path) -> None:
    layout = open_storage(tmp_path / "deep" / "root")
    assert json.dumps(sorted(path.name for path in layout.root.iterdir())) == (
        '["evaluations", "files", "models", "runs"]'
    )


def test_line_follower_returns_only_complete_new_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    follower = durable.LineFollower(path)
    assert follower.read_new() == []
    path.write_text('{"n": 1}\n{"n": 2}\n{"n"')
    assert follower.read_new() == [{"n": 1}, {"n": 2}]
    assert follower.read_new() == []
    with path.open("a") as file:
        file.write(": 3}\n")
    assert follower.read_new() == [{"n": 3}]
