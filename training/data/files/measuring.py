"""Measurement of the unpacked size of a file of rows, before an upload is accepted."""

import codecs
import time
from collections.abc import Iterator
from pathlib import Path

from training.data.faults import DataError
from training.data.files.columnar import read_lines
from training.data.files.kinds import (
    NUM_MAGIC_BYTES,
    find_columnar_kind,
    find_compression,
)
from training.data.files.packed import open_unpacked
from training.data.files.zip_files import ZIP_MAGIC, is_zip, measure_zip
from training.data.row_limits import MAX_ROW_BYTES

_CHUNK_BYTES = 1 << 20
MAX_UNPACKING_S = 300.0
"""Time limit for unpacking a file; other uploads of packed files wait meanwhile."""
_MIN_ROW_BYTES = 256
"""The smallest size counted for a row: a columnar file can have any number of empty rows."""


def is_packed(head: bytes) -> bool:
    """Return by its first bytes whether a file is packed: compressed, Parquet, Arrow or ZIP."""
    if head.startswith(ZIP_MAGIC):
        return True
    return find_compression(head) is not None or find_columnar_kind(head) is not None


def measure_unpacked(path: Path, name: str, max_bytes: int, max_s: float = MAX_UNPACKING_S) -> int:
    """Count the bytes of text, or of images, in a packed file; stops beyond `max_bytes`.

    Rows of Parquet and Arrow count as JSON. Raises `DataError` if the file cannot be unpacked, or
    takes more than `max_s` seconds, or if its content is not text in UTF-8.
    """
    if is_zip(path):
        return measure_zip(path, name)
    num_bytes = 0
    deadline = time.monotonic() + max_s
    for size_bytes in _measure_parts(path, name):
        num_bytes += size_bytes
        if num_bytes > max_bytes:
            break
        if time.monotonic() > deadline:
            raise DataError(
                f"{name} takes more than {max_s:g} s to unpack; split it, or upload it unpacked"
            )
    return num_bytes


def _measure_parts(path: Path, name: str) -> Iterator[int]:
    with path.open("rb") as file:
        kind = find_columnar_kind(file.read(NUM_MAGIC_BYTES))
    if kind is not None:
        for line in read_lines(path, name, kind):
            _, _, content = line.partition(b" ")
            # The JSON of a row that is too long is omitted.
            yield max(_MIN_ROW_BYTES, len(content)) if content.strip() else MAX_ROW_BYTES
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_unpacked(path, name) as file:
        head = file.read(NUM_MAGIC_BYTES)
        if is_packed(head):
            raise DataError(
                f"{name} is a compressed file that holds another packed one: unpack it once"
            )
        chunk = head
        while chunk:
            yield len(chunk)
            _decode(decoder, chunk, name)
            chunk = file.read(_CHUNK_BYTES)
        _decode(decoder, b"", name, is_last=True)


def _decode(
    decoder: codecs.IncrementalDecoder, chunk: bytes, name: str, *, is_last: bool = False
) -> None:
    try:
        decoder.decode(chunk, is_last)
    except UnicodeDecodeError as exc:
        raise DataError(f"{name} does not unpack to text ({exc.reason} in UTF-8)") from exc
