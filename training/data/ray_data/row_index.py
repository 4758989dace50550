"""The row index: the small columns of all rows, from which steps are planned and rows found."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.ray_data.spans import Span
from training.data.row_table import Counts, RowLayout, RowTable, view_column

# Columns of the tasks' own layouts that are kept; the others are what is streamed.
_KEPT = ("line", "number", "truncated_tokens", "labels")

Places = npt.NDArray[np.int64]

# Neighbouring rows are read together: reading some rows in vain is faster than a new start.
_MAX_GAP = 64


class IndexLayout:
    """A layout without the content of rows.

    `place` is the place of a row in its source (`spans`), and `part` the number of the sample in
    its row, from 0.
    """

    def __init__(self, layout: RowLayout[Any, Any]) -> None:
        self.content = layout
        kept = [layout.schema.field(name) for name in _KEPT if name in layout.schema.names]
        own = [("length", pa.int32()), ("num_targets", pa.int32())]
        own += [("place", pa.int64()), ("part", pa.int32())]
        self._kept = kept
        self.schema = pa.schema([*kept, *own])

    def make_batch(self, rows: Sequence[Any]) -> Any:
        """Raise `NotImplementedError`: an index is made from batches of the content."""
        raise NotImplementedError

    def index_batch(self, batch: Any, places: Places, parts: Counts) -> Any:
        """Return the index of a batch of the content; `places` and `parts` are `[num_rows]`."""
        columns = [batch.column(field.name) for field in self._kept]
        columns += [
            pa.array(self.content.measure_rows(batch), pa.int32()),
            pa.array(self.content.count_targets(batch), pa.int32()),
            pa.array(places, pa.int64()),
            pa.array(parts, pa.int32()),
        ]
        return pa.record_batch(columns, schema=self.schema)

    def measure_rows(self, batch: Any) -> Counts:
        """Return the length of each row."""
        return view_column(batch, "length")

    def count_targets(self, batch: Any) -> Counts:
        """Return the targets of each row."""
        return view_column(batch, "num_targets")

    def read_row(self, batch: Any, place: int) -> Any:
        """Raise `NotImplementedError`: the content of rows is streamed."""
        raise NotImplementedError


def number_parts(numbers: npt.NDArray[np.int64]) -> Counts:
    """Number the samples of each row from 0; samples of one row are adjacent, shape `[N]`."""
    index = np.arange(len(numbers))
    begins = np.concatenate([[True], numbers[1:] != numbers[:-1]]) if len(numbers) else index
    first = np.maximum.accumulate(np.where(begins, index, 0)) if len(numbers) else index
    parts: Counts = (index - first).astype(np.int32)
    return parts


class SourceRows(NamedTuple):
    """Rows of one source: the spans in which they are, and the rows by their place and part.

    A row that is repeated in a mix has several indices.
    """

    source: int
    spans: list[Span]
    indices: dict[tuple[int, int], list[int]]


class RowFinder:
    """Finds the rows of an index in their sources."""

    def __init__(self, table: RowTable) -> None:
        self._places: Places = _gather(table, "place", np.int64)
        self._parts: Counts = _gather(table, "part", np.int32)
        self._source_ends = table.source_ends

    def find(self, rows: npt.NDArray[np.int64]) -> Iterator[SourceRows]:
        """Yield the rows of each source; `rows` are indices, in any order."""
        rows = np.sort(rows)
        ends = np.searchsorted(rows, self._source_ends)
        bounds = [0, *ends.tolist()] if len(self._source_ends) else [0, len(rows)]
        for source, (begin, end) in enumerate(pairwise(bounds)):
            if begin < end:
                yield self._describe(source, rows[begin:end])

    def _describe(self, source: int, rows: npt.NDArray[np.int64]) -> SourceRows:
        cuts = (np.flatnonzero(np.diff(rows) > _MAX_GAP) + 1).tolist()
        spans = [
            Span(int(self._places[rows[begin]]), int(self._places[rows[end - 1]]) + 1)
            for begin, end in pairwise([0, *cuts, len(rows)])
        ]
        indices: dict[tuple[int, int], list[int]] = {}
        keys = zip(self._places[rows].tolist(), self._parts[rows].tolist(), strict=True)
        for key, row in zip(keys, rows.tolist(), strict=True):
            indices.setdefault(key, []).append(row)
        return SourceRows(source, _merge(spans), indices)


def _merge(spans: list[Span]) -> list[Span]:
    """Merge spans that overlap: a row of several samples, or that is repeated, is read once."""
    merged = spans[:1]
    for span in spans[1:]:
        last = merged[-1]
        if last.end is not None and span.start < last.end:
            merged[-1] = Span(last.start, span.end)
        else:
            merged.append(span)
    return merged


def _gather(table: RowTable, name: str, dtype: Any) -> Any:
    parts = [view_column(batch, name) for batch in table.iterate_batches()]
    return np.concatenate(parts) if parts else np.zeros(0, dtype)
