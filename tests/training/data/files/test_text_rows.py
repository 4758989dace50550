"""Plain text: by line, by paragraph, or whole."""

from pathlib import Path
from typing import Any

import pytest

from training.data import row_limits
from training.data.faults import RowFault
from training.data.readers import RowFile
from training.settings.source_settings import TextRows

POEM = "\N{BYTE ORDER MARK}\n\nOne, two,\r\nthree.\r\n \n\nFour\nfive.\n"


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("line", [(3, "One, two,"), (4, "three."), (7, "Four"), (8, "five.")]),
        ("paragraph", [(3, "One, two,\nthree."), (7, "Four\nfive.")]),
        ("document", [(3, "One, two,\nthree.\n \n\nFour\nfive.")]),
    ],
)
def test_text_is_split_by_unit(
    tmp_path: Path, unit: TextRows, expected: list[tuple[int, str]]
) -> None:
    file = tmp_path / "poem.txt"
    file.write_bytes(POEM.encode())
    found = [(line, record["text"]) for line, record in RowFile(file, text_rows=unit).read()]
    assert found == expected


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("[Verse 1]", {"text": "[Verse 1]"}),
        ("{not JSON", {"text": "{not JSON"}),
        ("Prompt, text and more", {"text": "Prompt, text and more"}),
        ("prompt\tcompletion", {"prompt": "a", "completion": "b"}),
        ('{"text": "a"}', {"text": "a"}),
        ('[{"text": "a"}]', {"text": "a"}),
    ],
)
def test_text_file_with_structured_rows_is_not_plain_text(
    tmp_path: Path, first: str, expected: dict[str, Any]
) -> None:
    file = tmp_path / "rows.txt"
    file.write_text(first if first.startswith("[{") else f"{first}\na\tb\n")
    (_, record), *_ = RowFile(file, ("prompt", "completion", "text")).read()
    assert record == expected


@pytest.mark.parametrize("unit", ["line", "paragraph", "document"])
def test_too_long_text_is_one_fault(
    tmp_path: Path, unit: TextRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", 10)
    file = tmp_path / "rows.txt"
    file.write_text("short\n\n" + "x" * 25 + "\n\n" + "a b c\n" * 3 + "\nend\n")
    found = list(RowFile(file, text_rows=unit).read())
    faults = [line for line, record in found if isinstance(record, RowFault)]
    texts = [record["text"] for _, record in found if isinstance(record, dict)]
    if unit == "line":
        assert (faults, texts) == ([3], ["short", "a b c", "a b c", "a b c", "end"])
    elif unit == "paragraph":
        assert (faults, texts) == ([3, 5], ["short", "end"])
    else:
        assert (faults, texts) == ([1], [])


def test_line_with_invalid_utf_8_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_bytes(b"Gr\xf6\xdfe\nfine\n")
    (line, fault), good = RowFile(file).read()
    assert (line, str(fault)) == (1, "not UTF-8 (byte 0xf6); save the file as UTF-8")
    assert good == (2, {"text": "fine"})
