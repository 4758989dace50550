import errno
import json
from pathlib import Path
from typing import Any

import pytest

from storage.durable import DamagedFileError
from storage.format_version import CURRENT_FORMAT, FormatVersion
from storage.versioned_json import NewerFormatError, explain_invalid, read_object, write_object


def test_written_object_has_version_and_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_object(path, {"id": "a"})
    assert read_object(path) == {"id": "a", "format_version": str(CURRENT_FORMAT)}


def test_object_of_release_0_1_gets_version_when_written(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"id": "a"}')
    value = read_object(path)
    assert value == {"id": "a"}
    write_object(path, value)
    assert json.loads(path.read_text())["format_version"] == str(CURRENT_FORMAT)


def test_newer_minor_version_is_read_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    newer = {"id": "a", "new_key": [1], "format_version": f"{CURRENT_FORMAT.major}.99"}
    path.write_text(json.dumps(newer))
    write_object(path, {**read_object(path), "id": "b"})
    assert json.loads(path.read_text()) == {**newer, "id": "b"}


def test_newer_major_version_is_rejected_and_file_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    content = json.dumps({"format_version": f"{CURRENT_FORMAT.major + 1}.0"})
    path.write_text(content)
    with pytest.raises(NewerFormatError, match=r"^'.*' needs a newer version of Tuneserve"):
        read_object(path)
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "it is not valid JSON: "),
        (b"\x00" * 20, "it is not valid JSON: "),
        (b"[]", "it contains a JSON list, expected an object"),
        (b'{"format_version": 3}', "format_version is 3, expected 'MAJOR.MINOR'"),
        (b'{"format_version": "new"}', "format_version is 'new', expected 'MAJOR.MINOR'"),
    ],
)
def test_damage_is_neither_value_error_nor_os_error(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=f"^'.*run.json' is damaged: {reason}") as caught:
        read_object(path)
    assert not isinstance(caught.value, (ValueError, OSError))
    assert caught.value.path == path


def test_io_error_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("storage.regular_file.open_regular", fail)
    with pytest.raises(DamagedFileError, match=r"^'.*run\.json' is damaged: Input/output error$"):
        read_object(tmp_path / "run.json")


def test_invalid_value_of_newer_version_is_explained(tmp_path: Path) -> None:
    newer = str(FormatVersion(CURRENT_FORMAT.major, CURRENT_FORMAT.minor + 1))
    found = explain_invalid(tmp_path, {"format_version": newer}, "status is 'x'")
    assert isinstance(found, NewerFormatError)
    assert f"its format is {newer}" in found.reason
    assert "status is 'x'" in found.reason
    assert not isinstance(explain_invalid(tmp_path, {}, "status is 'x'"), NewerFormatError)
