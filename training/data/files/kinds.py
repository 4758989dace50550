"""Detection of the kind of a file by its content; the suffix is only a hint."""

import csv
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from training.data.faults import DataError, show_value

FileKind = Literal["lines", "array", "table", "text", "parquet", "arrow_file", "arrow_stream"]
Compression = Literal["gzip", "zstd"]
Record = tuple[int, Any]
"""The number of the line or row, and its content, or the `RowFault` why it cannot be read."""

EXPECTED = (
    "expected rows as JSONL, as a JSON array, as CSV, Parquet or Arrow, or plain text in a .txt "
    "file; text in UTF-8, also compressed with gzip or zstd"
)
COLUMNAR_KINDS = ("parquet", "arrow_file", "arrow_stream")
NUM_MAGIC_BYTES = 8
_COMPRESSIONS: dict[bytes, Compression] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_COLUMNAR: dict[bytes, FileKind] = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow_file",
    b"\xff\xff\xff\xff": "arrow_stream",
}
_PACKED_SUFFIXES = (".gz", ".gzip", ".zst", ".zstd")
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_TEXT_SUFFIXES = (".txt", ".text")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
ROW_SUFFIXES = (*_JSON_SUFFIXES, ".csv", ".tsv", *_TEXT_SUFFIXES, ".parquet", ".arrow")
_SEPARATORS = (",", ";", "\t")
_FOREIGN_KINDS = {
    b"PK\x03\x04": "a ZIP archive or an Office document: unpack it, or save it as CSV; an "
    "archive of images is for the task 'image_classification'",
    b"%PDF": "a PDF: save its text as a .txt file",
    b"BZh": "compressed with bzip2: unpack it, or compress it with gzip or zstd",
    b"\xfd7zXZ": "compressed with xz: unpack it, or compress it with gzip or zstd",
    b"\xff\xfe": "encoded in UTF-16: save it as UTF-8",
    b"\xfe\xff": "encoded in UTF-16: save it as UTF-8",
}


def find_compression(head: bytes) -> Compression | None:
    """Return the compression of a file by its first bytes; None if it is not compressed."""
    return next((kind for magic, kind in _COMPRESSIONS.items() if head.startswith(magic)), None)


def find_columnar_kind(head: bytes) -> FileKind | None:
    """Return the kind of a Parquet or Arrow file by its first bytes; None for other files."""
    return next((kind for magic, kind in _COLUMNAR.items() if head.startswith(magic)), None)


def find_suffix(path: Path) -> str:
    """Return the suffix for the content of a file, in lower case, ignoring compression suffixes."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _PACKED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def detect_kind(name: str, suffix: str, sample: bytes, names: Collection[str]) -> FileKind:
    """Return the kind of a decompressed file by its beginning, or raise `DataError`.

    `names` are expected column names; they distinguish a CSV file from malformed JSON.
    """
    if kind := find_columnar_kind(sample):
        return kind
    text = _decode_sample(name, sample)
    begin = text.lstrip()
    first = begin.split("\n", 1)[0].strip()
    if suffix in _TEXT_SUFFIXES and not _holds_rows(begin, first, names):
        return "text"
    if begin.startswith("["):
        return "array"
    if begin.startswith("{"):
        _refuse_spread_object(name, begin)
        return "lines"
    separator = find_separator(suffix, first)
    cells = {cell.strip().strip('"') for cell in first.split(separator)}
    if suffix in (".csv", ".tsv") or cells & set(names):
        return "table"
    if not begin or suffix in _JSON_SUFFIXES or _is_json(first):
        return "lines"
    if separator in first:
        return "table"
    raise DataError(f"{name} begins with {show_value(first)}: {EXPECTED}")


def find_separator(suffix: str, header: str) -> str:
    """Return the separator of a table, judged by its header."""
    if suffix == ".tsv":
        return "\t"
    return max(_SEPARATORS, key=header.count)  # the first if equal: a comma


def find_quoting(sample: str, separator: str) -> Literal[0, 3]:
    """Return csv's quoting mode: in tab-separated files, quotes are often plain text."""
    if separator == "\t":
        try:
            list(csv.reader(sample.splitlines(keepends=True), delimiter=separator, strict=True))
        except csv.Error as exc:
            if "expected after" in str(exc):  # other errors: a sample may end within quotes
                return csv.QUOTE_NONE
    return csv.QUOTE_MINIMAL


def _decode_sample(name: str, sample: bytes) -> str:
    if find_compression(sample):
        raise DataError(f"{name} is compressed twice: unpack it once; {EXPECTED}")
    for magic, kind in _FOREIGN_KINDS.items():
        if sample.startswith(magic):
            raise DataError(f"{name} is not text but {kind}; {EXPECTED}")
    if (place := sample.find(b"\0")) >= 0:
        raise DataError(f"{name} is not text: byte {place} is NUL; {EXPECTED}")
    return sample.decode("utf-8-sig", errors="replace")


def _holds_rows(begin: str, first: str, names: Collection[str]) -> bool:
    """Return whether a file with the suffix of plain text is actually a table or JSON."""
    if begin.startswith("["):
        return begin[1:].lstrip()[:1] in ("{", "]")
    if begin.startswith("{"):
        return _is_json(first)
    cells = {cell.strip().strip('"') for cell in first.split(find_separator("", first))}
    return cells <= set(names) or len(cells & set(names)) > 1


def _refuse_spread_object(name: str, text: str) -> None:
    """Refuse an object over several lines, which is neither a row of JSONL nor an array."""
    lines = [line.strip() for line in text.split("\n", 20) if line.strip()]
    if len(lines) < 2 or _is_json(lines[0]):
        return
    if lines[0][-1] in "{[" or not lines[1].startswith("{"):
        raise DataError(
            f"{name} has an object on several lines, beginning with {show_value(lines[0])}: "
            "expected one object a line, or an array of objects; if the rows are in a list "
            "within it, as in {'data': [...]}, make the file that list alone"
        )


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
