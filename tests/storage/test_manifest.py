import json
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from storage.durable import DamagedDirectoryError
from storage.manifest import ListedFile, read_manifest, verify_directory
from storage.versioned_json import NewerFormatError


@pytest.fixture
def published(tmp_path: Path) -> Path:
    building = tmp_path / ".new"
    building.mkdir()
    (building / "weights").write_text("right")
    durable.publish_directory(building, tmp_path / "model")
    return tmp_path / "model"


def change(published: Path, **changes: Any) -> None:
    path = published / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_manifest_lists_each_file(published: Path) -> None:
    expected = ListedFile(5, durable.hash_file(published / "weights"))
    assert read_manifest(published) == {"weights": expected}


def test_manifest_of_release_0_1_without_version_is_read(published: Path) -> None:
    path = published / "manifest.json"
    path.write_text(json.dumps({"files": json.loads(path.read_text())["files"]}))
    verify_directory(published)


def test_keys_of_newer_minor_version_are_ignored(published: Path) -> None:
    files = json.loads((published / "manifest.json").read_text())["files"]
    files["weights"]["blake3"] = "ab"
    change(published, format_version="1.9", files=files, signed_by="ann")
    verify_directory(published)
    (published / "weights").write_text("wrong")
    with pytest.raises(DamagedDirectoryError, match=r"^model: 'weights' differs from its manifest"):
        verify_directory(published)


@pytest.mark.parametrize(
    "changes",
    [{"format_version": "2.0"}, {"format_version": "1.9", "files": ["weights"]}],
    ids=["newer major", "newer minor with another value"],
)
def test_manifest_of_newer_release_is_not_reported_as_damaged(
    published: Path, changes: dict[str, Any]
) -> None:
    change(published, **changes)
    with pytest.raises(
        NewerFormatError, match=r"^'.*manifest\.json' needs a newer version of Tuneserve"
    ) as caught:
        verify_directory(published)
    assert changes["format_version"] in caught.value.reason
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"files": 1}', '{"files": {"weights": {}}}', '{"files": {"w": 7}}']
)
def test_damaged_manifest_is_named(published: Path, content: str) -> None:
    (published / "manifest.json").write_text(content)
    with pytest.raises(DamagedDirectoryError, match=r"^model: 'manifest\.json' cannot be read: "):
        verify_directory(published)


def test_folder_without_manifest_is_damaged(published: Path) -> None:
    (published / "manifest.json").unlink()
    with pytest.raises(
        DamagedDirectoryError, match=r"^model: 'manifest\.json' cannot be read: No such file"
    ):
        verify_directory(published)
