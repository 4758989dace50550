import errno
import json
from pathlib import Path
from typing import Any

import pytest

from storage.durable import DamagedFileError
from storage.lineage_file import read_lineage_file
from storage.versioned_json import NewerFormatError


def write(folder: Path, value: Any) -> Path:
    text = value if isinstance(value, str) else json.dumps(value, indent=2)
    (folder / "lineage.json").write_text(text)
    return folder


def nest(depth: int) -> str:
    """Return the nested lineage of `depth` fine-tunes in the format of release 0.1."""
    head = "".join(f'{{"base_model": "m-{n}", "parent": ' for n in range(depth))
    return head + "null" + ', "data": {}}' * depth


def test_folder_without_lineage_file_has_no_lineage(tmp_path: Path) -> None:
    assert read_lineage_file(tmp_path) == {}


def test_flat_lineage_is_read_unchanged(tmp_path: Path) -> None:
    root = {"base_model": "first", "base_model_revision": "sha256:ab"}
    for lineage in (
        {"run_id": "r", "base_model": "b", "parent": None, "root": root},
        {"run_id": "r", "parent": {"run_id": "p", "more": [1]}, "root": root, "new": {"parent": 1}},
    ):
        assert read_lineage_file(write(tmp_path, lineage)) == lineage


@pytest.mark.parametrize("depth", [2, 3, 199, 250, 3_000])
def test_nested_lineage_of_any_depth_is_flattened(tmp_path: Path, depth: int) -> None:
    assert read_lineage_file(write(tmp_path, nest(depth))) == {
        "base_model": "m-0",
        "parent": {"base_model": "m-1", "data": {}},
        "root": {"base_model": f"m-{depth - 1}", "base_model_revision": None},
        "data": {},
    }


def test_parent_key_at_other_positions_is_ignored(tmp_path: Path) -> None:
    lineage = {
        "text": 'a "parent": {"x": 1} and \\',
        "list": [{"parent": {"parent": {}}}],
        "parent": {"spec": {"parent": {"a": "}"}}, "name": '"parent'},
        "name": "parent",
    }
    found = read_lineage_file(write(tmp_path, lineage))
    root = {"base_model": None, "base_model_revision": None}
    assert found == {**lineage, "root": root}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it is not valid JSON: "),
        ('{"parent": {', "it is not valid JSON: "),
        ('{"parent": {"a": 1}} {}', "it is not valid JSON: "),
        ('{"parent": {"a" 1}}', "it is not valid JSON: "),
        ("}{", "it is not valid JSON: "),
        ("[]", "it contains a JSON list, expected an object"),
        ("[" * 500_000, "it is not valid JSON: .*recursion limit"),
        ('{"a": ' * 100_000, "it is not valid JSON: .*recursion limit"),
        ('{"' + '\\"' * 500_000, "it is not valid JSON: "),
        ('{"format_version": 3}', "format_version is 3, expected 'MAJOR.MINOR'"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: str, reason: str) -> None:
    with pytest.raises(DamagedFileError, match=f"^'.*lineage.json' is damaged: {reason}") as caught:
        read_lineage_file(write(tmp_path, content))
    assert not isinstance(caught.value, NewerFormatError)
    assert caught.value.path == tmp_path / "lineage.json"


def test_last_of_two_parent_keys_is_used(tmp_path: Path) -> None:
    write(tmp_path, '{"parent": {"run_id": "a"}, "parent": {"run_id": "b"}}')
    assert read_lineage_file(tmp_path)["parent"] == {"run_id": "b"}


def test_newer_major_version_is_rejected_and_newer_minor_is_read(tmp_path: Path) -> None:
    newer = {"run_id": "r", "format_version": "1.9", "later": [1]}
    assert read_lineage_file(write(tmp_path, newer)) == newer
    with pytest.raises(
        NewerFormatError,
        match=r"^'.*lineage\.json' needs a newer version of .* 2\.0, and this version writes",
    ):
        read_lineage_file(write(tmp_path, {**newer, "format_version": "2.0"}))


def test_file_over_max_bytes_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, {"a": "b" * 100})
    with pytest.raises(DamagedFileError, match=r"^'.*' is damaged: it has more than 50 bytes$"):
        read_lineage_file(tmp_path, max_bytes=50)


def test_disk_error_is_not_reported_as_damage(tmp_path: Path) -> None:
    (tmp_path / "lineage.json").mkdir()
    with pytest.raises(OSError, match=r"^\[Errno 21\] Is a directory") as caught:
        read_lineage_file(tmp_path)
    assert caught.value.errno == errno.EISDIR
