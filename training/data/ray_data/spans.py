"""Parts of a source that a task of a pipeline reads without the rest of it.

A row has a place: the byte at which its line begins, in files of lines that are not compressed;
else its number in the source. Places ascend in the order of the rows. In files of lines a span is
found at once; in other sources, the rows before it are read and skipped, or whole row groups are.
"""

from codecs import BOM_UTF8
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from training.data.faults import DataError
from training.data.files.columnar import read_columnar
from training.data.files.csv_rows import read_table
from training.data.files.json_rows import read_json_lines
from training.data.files.kinds import COLUMNAR_KINDS, Record
from training.data.files.text_rows import read_text
from training.data.images.image_folder import ImageFolder
from training.data.ray_data.bucket_files import BucketFile
from training.data.readers import DetectedKind, HubRows, RowFile, RowSource

SPAN_BYTES = 16 << 20
"""The size of a part of a file that one task checks."""
MAX_UNDIVIDED_BYTES = 64 << 20
"""The largest source whose rows have no places from which reading can start."""
_SPAN_IMAGES = 256
_SKIPPED_BYTES = 1 << 20


class Span(NamedTuple):
    """The rows whose places are at least `start` and less than `end`; all rows without an end.

    `num_lines` lines precede them in the source.
    """

    start: int = 0
    end: int | None = None
    num_lines: int = 0


def check_divisible(source: RowSource) -> None:
    """Raise `DataError` for a source that Ray Data cannot stream."""
    if isinstance(source, HubRows):
        raise DataError(
            f"the data set {source.name!r} is on the hub, which data_engine 'ray' does not read: "
            "set data_engine to 'local', or download it as Parquet or JSONL files"
        )
    if not isinstance(source, RowFile) or source.measure() <= MAX_UNDIVIDED_BYTES:
        return
    found = source.detect()
    has_places = found.kind in ("lines", "table", "parquet", "arrow_file")
    if found.is_packed or not (has_places or _is_lines(source, found)):
        what = "compressed" if found.is_packed else f"of the kind {found.kind!r}"
        raise DataError(
            f"{source.name} has {source.measure():,} bytes and is {what}, so data_engine 'ray' "
            f"cannot start to read in the middle of it, expected at most {MAX_UNDIVIDED_BYTES:,} "
            "bytes: convert it to uncompressed JSONL or to Parquet, split it into smaller files, "
            "or set data_engine to 'local'"
        )


def divide_source(source: RowSource) -> list[Span]:
    """Divide a source into spans that are read in parallel; their lines are not counted yet."""
    if isinstance(source, ImageFolder):
        numbers = range(1, source.count_images() + 1, _SPAN_IMAGES)
        return [Span(first, first + _SPAN_IMAGES, first - 1) for first in numbers]
    if not isinstance(source, RowFile) or not _is_lines(source, source.detect()):
        return [Span()]
    size = source.measure()
    starts = range(0, max(1, size), SPAN_BYTES)
    return [Span(start, min(start + SPAN_BYTES, size)) for start in starts]


def count_lines(source: RowFile, span: Span) -> int:
    """Count the line ends of a span of a file of lines."""
    assert span.end is not None
    num_lines, left = 0, span.end - span.start
    with source.open_file() as file:
        file.seek(span.start)
        while left > 0 and (chunk := file.read(min(left, _SKIPPED_BYTES))):
            num_lines += chunk.count(b"\n")
            left -= len(chunk)
    return num_lines


def is_within_line(source: RowFile, span: Span) -> bool:
    """Return whether a span starts within a line, which belongs to the span before."""
    if span.start == 0:
        return False
    with source.open_file() as file:
        file.seek(span.start - 1)
        return file.read(1) != b"\n"


class SpanSource:
    """A source of the rows of spans, in the order of the source.

    With `wanted`, only the rows at these places are read. `places` are those of the rows that have
    been read, in order.
    """

    position = 0

    def __init__(
        self, source: RowSource, spans: Sequence[Span], wanted: Collection[int] | None = None
    ) -> None:
        self.name = source.name
        self.path = source.path
        self.unit = source.unit
        self.places: list[int] = []
        self._source = source
        self._spans = spans
        self._wanted = wanted

    def measure(self) -> int:
        """Return the size of the whole source."""
        return self._source.measure()

    def compute_fingerprint(self) -> str:
        """Return that of the whole source."""
        return self._source.compute_fingerprint()

    def read(self) -> Generator[Record]:
        """Yield the records of the spans."""
        for span in self._spans:
            yield from self._read_span(span)

    def _read_span(self, span: Span) -> Iterator[Record]:
        for place, record in self._read_from(span):
            if span.end is not None and place >= span.end:
                return
            if place >= span.start and (self._wanted is None or place in self._wanted):
                self.places.append(place)
                yield record

    def _read_from(self, span: Span) -> Iterator[tuple[int, Record]]:
        """Yield the records from the start of a span or before it, with their places."""
        source = self._source
        if not isinstance(source, RowFile):
            return enumerate(source.read(), 1)
        found = source.detect()
        if _is_lines(source, found):
            return self._read_lines(source, found, span)
        if found.kind == "table" and not found.is_packed:
            return self._read_table(source, found, span)
        if found.kind in COLUMNAR_KINDS and not found.is_packed:
            return self._read_rows(source, found, max(0, span.start - 1))
        return enumerate(source.read(), 1)

    def _read_lines(
        self, source: RowFile, found: DetectedKind, span: Span
    ) -> Iterator[tuple[int, Record]]:
        with source.open_file() as file:
            lines: Any = _SpanLines(file, span)
            records = (
                read_json_lines(lines)
                if found.kind == "lines"
                else read_text(lines, source.text_rows)
            )
            for number, record in records:
                yield lines.line_start, (span.num_lines + number, record)

    def _read_table(
        self, source: RowFile, found: DetectedKind, span: Span
    ) -> Iterator[tuple[int, Record]]:
        with source.open_file() as file:
            if found.sample.startswith(BOM_UTF8):
                file.read(len(BOM_UTF8))
            yield from read_table(file, source.name, source.suffix, found.sample, span.start)

    def _read_rows(
        self, source: RowFile, found: DetectedKind, num_skipped: int
    ) -> Iterator[tuple[int, Record]]:
        rows = read_columnar(
            source.url if isinstance(source, BucketFile) else source.path,
            source.name,
            found.kind,
            reads_binary=source.reads_binary,
            num_skipped=num_skipped,
            deadline=source.deadline,
        )
        for _, (number, record) in rows:
            yield number, (number, record)


class _SpanLines:
    """The lines of a file that begin in a span, for readers of lines.

    A byte order mark belongs to the first line.
    """

    def __init__(self, file: BinaryIO, span: Span) -> None:
        self._file = file
        self._end = span.end
        self._is_within_line = False
        self.line_start = 0
        if span.start:
            self._skip_begun_line(span.start)
            self._position = self._next_position = file.tell()
        else:
            self._position = 0
            self._next_position = len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0
            file.seek(self._next_position)

    def _skip_begun_line(self, start: int) -> None:
        self._file.seek(start - 1)
        while (part := self._file.readline(_SKIPPED_BYTES)) and not part.endswith(b"\n"):
            pass

    def readline(self, limit: int) -> bytes:
        """Read a line, or at most `limit` bytes of it; nothing at the end of the span."""
        if not self._is_within_line:
            if self._end is not None and self._position >= self._end:
                return b""
            self.line_start = self._position
        part = self._file.readline(limit)
        self._next_position += len(part)
        self._position = self._next_position
        self._is_within_line = not part.endswith(b"\n")
        return part


def _is_lines(source: RowFile, found: DetectedKind) -> bool:
    if found.is_packed:
        return False
    return found.kind == "lines" or (found.kind == "text" and source.text_rows == "line")
