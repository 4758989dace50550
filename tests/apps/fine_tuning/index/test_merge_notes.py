"""Notes on merges are read by all processes, and say which merges were lost."""

import os
from pathlib import Path

import pytest

from apps.fine_tuning.index import merge_notes
from apps.fine_tuning.index.merge_notes import (
    MergeNote,
    list_merging,
    read_merges,
    reserve_merge,
    write_merge,
)
from storage.layout import StorageLayout


@pytest.fixture
def root(tmp_path: Path) -> StorageLayout:
    return StorageLayout(tmp_path / "storage").create()


def note(model_id: str, created: float = 1.0) -> MergeNote:
    return MergeNote(id=model_id, adapter="a", created=created)


def test_ids_are_reserved_until_their_folder_is_removed(root: StorageLayout) -> None:
    first, second = reserve_merge(root, "new-model.v1"), reserve_merge(root, "new")
    assert sorted(list_merging(root)) == ["new", "new-model.v1"]
    first.remove()
    assert list_merging(root) == ["new"]
    second.remove()
    assert list_merging(root) == []


def test_merge_whose_process_was_killed_has_failed(root: StorageLayout) -> None:
    folder = reserve_merge(root, "one")
    write_merge(root, note("one"))
    write_merge(root, note("two", 2.0))
    found = read_merges(root, "a")
    assert [(one.id, one.status) for one in found] == [("two", "failed"), ("one", "merging")]
    assert found[0].error is not None
    assert found[0].error.code == "merge_lost"
    assert read_merges(root, "b") == []
    folder.remove()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"id": 3}', b"\xff\xfe"])
def test_damaged_note_is_left_out(content: bytes, root: StorageLayout) -> None:
    write_merge(root, note("one"))
    (root.store.merges / "two.json").write_bytes(content)
    assert [one.id for one in read_merges(root, "a")] == ["one"]


def test_oldest_notes_are_removed(root: StorageLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_notes, "_MAX_NOTES", 2)
    for number in range(3):
        write_merge(root, note(f"m{number}", float(number)))
        os.utime(root.store.merges / f"m{number}.json", (number, number))
    write_merge(root, note("m3", 3.0))
    assert [one.id for one in read_merges(root, "a")] == ["m3", "m2"]
