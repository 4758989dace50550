"""The first pass: a pipeline that checks every row and writes the row index.

Each task reads, checks and tokenises one part of a file. Only the row index and the counts come
back to the driver, so neither the rows nor their tokens are copied.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
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
        self._results: _Results | None = None

    def describe_inputs(self) -> Mapping[str, Any]:
        """Return the version of the index."""
        return {"ray_index": _INDEX_VERSION}

    def encode(
        self,
        sources: Sequence[RowSource],
        fallback: str | None,
        max_rows: int | None,
        table: Path,
        meter: ByteMeter,
    ) -> EncodedSource:
        """Write the index of the first source. Needs a connected Ray cluster.

        One pipeline checks all sources, whose results wait for the next calls.
        """
        source = sources[0]
        if self._results is None or not self._results.has(source):
            settings = EncodingSettings(self._spec.model_dump_json(), fallback)
            self._results = _Results(sources, settings, max_rows)
        try:
            return self._merge_results(self._results.take(source), source, table, meter)
        except BaseException:
            self._results.close()  # now, while the cluster is connected
            raise

    def _merge_results(
        self,
        results: Iterator[Mapping[str, Any]],
        source: RowSource,
        table: Path,
        meter: ByteMeter,
    ) -> EncodedSource:
        counts = RowCounts(RowFaultLog(source.name, source.unit))
        description: Mapping[str, Any] | None = None
        with (
            pa.OSFile(str(table), "wb") as sink,
            pa.ipc.new_file(sink, self.layout.schema) as writer,
        ):
            for result in results:
                report: SpanReport = pickle.loads(result["report"])  # noqa: S301 - our own task's
                if report.error is not None:
                    raise DataError(report.error)
                counts.add(report.counts)
                description = description or report.description
                for batch in pa.ipc.open_stream(result["index"]):
                    writer.write_batch(batch)
                meter.report(max(0, int(result["end"])))
        counts.check(source.name, source.unit, (description or {}).get("max_length", 0))
        assert description is not None  # there are rows
        return EncodedSource(description, counts)


class _Results:
    """The results of one pipeline over the spans of sources, in their order."""

    def __init__(
        self, sources: Sequence[RowSource], settings: EncodingSettings, max_rows: int | None
    ) -> None:
        for source in sources:
            check_divisible(source)
        self._left = list(sources)
        self._spans = [[Span()] if max_rows else divide_source(source) for source in sources]
        items = _list_items(_number_lines(sources, self._spans))
        self._results = run_over(items, partial(_check_span, list(sources), settings, max_rows))

    def has(self, source: RowSource) -> bool:
        """Return whether the results of a source have not been taken."""
        return any(one is source for one in self._left)

    def take(self, source: RowSource) -> Iterator[Mapping[str, Any]]:
        """Yield the results of a source; those of the sources before it are dropped."""
        is_found = False
        while not is_found:
            is_found = self._left.pop(0) is source
            for result in islice(self._results, len(self._spans.pop(0))):
                if is_found:
                    yield result
        if not self._left:
            self.close()

    def close(self) -> None:
        """End the pipeline."""
        self._results.close()


def _list_items(spans: Sequence[Sequence[Span]]) -> list[dict[str, int]]:
    # Ray Data guesses the type of a column: -1 means None.
    return [
        {
            "source": place,
            "start": span.start,
            "end": -1 if span.end is None else span.end,
            "num_lines": span.num_lines,
        }
        for place, own in enumerate(spans)
        for span in own
    ]


def _read_item(item: Mapping[str, Any]) -> tuple[int, Span]:
    source, start, end, num_lines = (
        int(item[name][0]) for name in ("source", "start", "end", "num_lines")
    )
    return source, Span(start, None if end < 0 else end, num_lines)


def _number_lines(
    sources: Sequence[RowSource], spans: Sequence[Sequence[Span]]
) -> list[list[Span]]:
    """Set the lines before each span, so that faults are reported with the lines of the file."""
    divided = [
        own if len(own) > 1 and isinstance(own_source, RowFile) else []
        for own_source, own in zip(sources, spans, strict=True)
    ]
    items = _list_items(divided)
    found = iter(list(run_over(items, partial(_count_lines, list(sources)))) if items else [])
    numbered = []
    for source, own, counted in zip(sources, spans, divided, strict=True):
        if not counted or not isinstance(source, RowFile):
            numbered.append(list(own))
            continue
        before = accumulate((int(row["num_lines"]) for row in islice(found, len(own))), initial=0)
        # A span begins with the first line that begins in it: the rest of one is skipped.
        numbered.append(
            [
                span._replace(num_lines=lines + is_within_line(source, span))
                for span, lines in zip(own, list(before), strict=False)
            ]
        )
    return numbered


def _count_lines(sources: Sequence[RowSource], item: Mapping[str, Any]) -> Iterator[Any]:
    place, span = _read_item(item)
    source = sources[place]
    assert isinstance(source, RowFile)
    yield {"num_lines": np.array([count_lines(source, span)])}


def _check_span(
    sources: Sequence[RowSource],
    settings: EncodingSettings,
    max_rows: int | None,
    item: Mapping[str, Any],
) -> Iterator[Any]:
    """Check the rows of a span; yields one row with their index and a `SpanReport`."""
    place, span = _read_item(item)
    source = sources[place]
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
            "end": item["end"],
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
