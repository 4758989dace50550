"""The first pass: a pipeline that checks every row and writes the row index.

Each task reads, checks and tokenises one part of a file. Only the row index and the counts come
back to the driver, so neither the rows nor their tokens are copied.
"""

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from system.byte_progress import ByteMeter
from training.data.faults import DataError, RowFaultLog
from training.data.ray_data.encoding import EncodingSettings, SpanEncoder
from training.data.ray_data.pipelines import run_over
from training.data.ray_data.row_index import IndexLayout, number_parts
from training.data.ray_data.spans import (
    Span,
    SpanSource,
    check_divisible,
    count_lines,
    divide_source,
    is_within_line,
)
from training.data.readers import RowFile, RowSource
from training.data.row_counts import RowCounts
from training.data.row_table import view_column
from training.data.source_encoder import EncodedSource
from training.spec import TrainingSpec
from training.task import TaskData

_INDEX_VERSION = 1  # part of the cache key of an index
_BATCH_ROWS = 512


@dataclass(frozen=True)
class SpanReport:
    """What became of the rows of a span; `error` is the message of what stopped its reading."""

    counts: RowCounts
    description: Mapping[str, Any] | None = None
    error: str | None = None


class RayEncoder:
    """Checks rows with a pipeline over the cluster; its tables are row indexes."""

    def __init__(self, spec: TrainingSpec, data: TaskData) -> None:
        self.layout = IndexLayout(data.layout)
        self._spec = spec

    def describe_inputs(self) -> Mapping[str, Any]:
        """Return the version of the index."""
        return {"ray_index": _INDEX_VERSION}

    def encode(
        self,
        source: RowSource,
        fallback: str | None,
        max_rows: int | None,
        table: Path,
        meter: ByteMeter,
    ) -> EncodedSource:
        """Write the index of a source. Needs a connected Ray cluster."""
        check_divisible(source)
        spans = _number_lines(source, divide_source(source)) if max_rows is None else [Span()]
        settings = EncodingSettings(self._spec.model_dump_json(), fallback)
        work = partial(_check_span, source, settings, max_rows)
        counts = RowCounts(RowFaultLog(source.name, source.unit))
        description: Mapping[str, Any] | None = None
        max_length = 0
        with (
            pa.OSFile(str(table), "wb") as sink,
            pa.ipc.new_file(sink, self.layout.schema) as writer,
        ):
            for span, row in zip(spans, run_over(_list(spans), work), strict=True):
                report: SpanReport = pickle.loads(row["report"])  # noqa: S301 - our own task's
                if report.error is not None:
                    raise DataError(report.error)
                counts.add(report.counts)
                description = description or report.description
                for batch in pa.ipc.open_stream(row["index"]):
                    writer.write_batch(batch)
                meter.report(span.end or 0)
        if description is not None:
            max_length = description["max_length"]
        counts.check(source.name, source.unit, max_length)
        assert description is not None  # there are rows
        return EncodedSource(description, counts)


def _list(spans: list[Span]) -> list[dict[str, Any]]:
    # Ray Data guesses the type of a column: -1 stands for None.
    return [span._replace(end=-1 if span.end is None else span.end)._asdict() for span in spans]


def _read_span(item: Mapping[str, Any]) -> Span:
    start, end, num_lines = (int(item[name][0]) for name in Span._fields)
    return Span(start, None if end < 0 else end, num_lines)


def _number_lines(source: RowSource, spans: list[Span]) -> list[Span]:
    """Set the lines before each span, so that faults are reported with the lines of the file."""
    if len(spans) == 1 or not isinstance(source, RowFile):
        return spans
    found = [int(row["num_lines"]) for row in run_over(_list(spans), partial(_count_lines, source))]
    before = accumulate(found, initial=0)
    # A span begins with the first line that begins in it: the rest of the line before is skipped.
    return [
        span._replace(num_lines=lines + is_within_line(source, span))
        for span, lines in zip(spans, before, strict=False)
    ]


def _count_lines(source: RowFile, item: Mapping[str, Any]) -> Iterator[Any]:
    yield {"num_lines": np.array([count_lines(source, _read_span(item))])}


def _check_span(
    source: RowSource, settings: EncodingSettings, max_rows: int | None, item: Mapping[str, Any]
) -> Iterator[Any]:
    """Check the rows of a span; yields one row with their index and a `SpanReport`."""
    span = _read_span(item)
    sink = pa.BufferOutputStream()
    try:
        report = _write_index(source, settings, span, max_rows, sink)
    except DataError as exc:
        counts = RowCounts(RowFaultLog(source.name, source.unit))
        report = SpanReport(counts, error=str(exc))
    yield pa.table(
        {
            "index": pa.array([sink.getvalue().to_pybytes()], pa.large_binary()),
            "report": pa.array([pickle.dumps(report)], pa.large_binary()),
        }
    )


def _write_index(
    source: RowSource, settings: EncodingSettings, span: Span, max_rows: int | None, sink: Any
) -> SpanReport:
    encoder = SpanEncoder(source, settings)
    layout = IndexLayout(encoder.data.layout)
    read = SpanSource(source, [span])
    stream = encoder.open_stream(read, span.num_lines)
    last_part = _LastPart()
    with pa.ipc.new_stream(sink, layout.schema) as writer:
        pending = []
        for row in stream.encode_unchecked(max_rows):
            pending.append(row)
            if len(pending) == _BATCH_ROWS:
                writer.write_batch(_index(layout, pending, read, span, last_part))
                pending = []
        if pending:
            writer.write_batch(_index(layout, pending, read, span, last_part))
    description = stream.describe() if encoder.has_format else None
    return SpanReport(stream.counts, description)


@dataclass
class _LastPart:
    """The number of the last row indexed, and how many samples of it: a batch may divide them."""

    number: int = -1
    num_parts: int = 0


def _index(
    layout: IndexLayout, rows: list[Any], read: SpanSource, span: Span, last: _LastPart
) -> Any:
    batch = layout.content.make_batch(rows)
    numbers = view_column(batch, "number").astype(np.int64)
    parts = number_parts(numbers)
    parts[numbers == last.number] += np.int32(last.num_parts)
    last.number, last.num_parts = int(numbers[-1]), int(parts[-1]) + 1
    places = np.array(read.places, np.int64)[numbers - span.num_lines - 1]
    return layout.index_batch(batch, places, parts)
