"""Reader of plain text as records with a `text`: lines, paragraphs, or the whole document."""

from collections.abc import Iterator
from typing import BinaryIO

from training.data import row_limits
from training.data.faults import RowFault
from training.data.files.kinds import Record
from training.settings.source_settings import TextRows


def read_text(file: BinaryIO, text_rows: TextRows) -> Iterator[Record]:
    """Yield the texts of a file with the lines on which they begin; blank ones are skipped."""
    if text_rows == "line":
        return _read_lines(file)
    return _read_blocks(file, is_document=text_rows == "document")


def _read_lines(file: BinaryIO) -> Iterator[Record]:
    for number, line in _number_lines(file):
        if line is None:
            yield number, row_limits.describe_endless()
        elif line.strip():
            yield number, _make_record(line)


def _read_blocks(file: BinaryIO, *, is_document: bool) -> Iterator[Record]:
    """Yield the blocks between blank lines, or everything if it is one document."""
    block = bytearray()
    first = 0
    is_endless = False
    for number, line in _number_lines(file):
        if line is not None and not line.strip() and (not block or not is_document):
            if first:
                yield (
                    first,
                    row_limits.describe_endless() if is_endless else _make_record(bytes(block)),
                )
            block.clear()
            first, is_endless = 0, False
            continue
        first = first or number
        is_endless = is_endless or line is None or len(block) + len(line) > row_limits.MAX_ROW_BYTES
        if is_endless:
            block[:] = b"."  # the content is not kept
        elif line is not None:
            block += line
    if first:
        yield first, row_limits.describe_endless() if is_endless else _make_record(bytes(block))


def _number_lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield lines with their numbers; None for one that is too long."""
    number = 0
    while line := file.readline(row_limits.MAX_ROW_BYTES + 1):
        number += 1
        if len(line) <= row_limits.MAX_ROW_BYTES:
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(row_limits.MAX_ROW_BYTES)
        yield number, None


def _make_record(text: bytes) -> dict[str, str] | RowFault:
    try:
        return {"text": text.decode().replace("\r\n", "\n").strip("\n")}
    except UnicodeDecodeError as exc:
        return RowFault("not UTF-8 (byte {:#04x}); save the file as UTF-8", text[exc.start])
