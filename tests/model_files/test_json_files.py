from pathlib import Path

import pytest

from model_files.json_files import find_object, read_object


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "a.json holds a list; expected an object"),
        (b"{", "a.json is not valid JSON"),
        (b"\xff", "a.json is not valid JSON"),
        (b'{"a":' * 100_000, "a.json is not valid JSON"),
        (b'{"a": "' + b"x" * 100 + b'"}', "a.json has 109 bytes; expected at most 100"),
    ],
)
def test_file_without_json_object_is_rejected(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"^{message}"):
        read_object(tmp_path / "a.json", 100 if len(content) == 109 else 1 << 20)


def test_find_object_returns_none_for_missing_file(tmp_path: Path) -> None:
    assert find_object(tmp_path / "a.json") is None
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert find_object(tmp_path / "a.json") == {"a": 1}
