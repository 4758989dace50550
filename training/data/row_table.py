"""The rows of a run on disk: an Arrow file, written in a stream, read memory-mapped.

What a row contains is the task's: its `RowLayout` maps encoded rows to columns and back.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.faults import MAX_LINES_SHOWN, describe_lines
from training.data.rows import EncodedRow

if TYPE_CHECKING:
    from training.batching import BatchPlan, WindowPosition

SOURCES_KEY = b"sources"
"""Metadata key of a table of several sources: JSON of [name, num_rows] for each, in order."""

_BATCH_BYTES = 5 << 20
_BATCH_ROWS = 1 << 14

Counts = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


Stored = TypeVar("Stored", bound=EncodedRow, contravariant=True)
Read = TypeVar("Read", covariant=True)


class RowLayout(Protocol[Stored, Read]):
    """The columns of a task's rows; a batch is a `pyarrow.RecordBatch` with this schema.

    The schema has at least `line`, `number` and `truncated_tokens`.
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    def make_batch(self, rows: Sequence[Stored]) -> Any:
        """Return the rows as a record batch."""

    def measure_rows(self, batch: Any) -> Counts:
        """Return the length of each row: what the limit of a micro batch counts."""

    def count_targets(self, batch: Any) -> Counts:
        """Return how many predictions of each row the loss counts."""

    def read_row(self, batch: Any, place: int) -> Read:
        """Read the row at a place in a batch."""


class RowWriter:
    """Writes encoded rows to a new file in record batches; complete once it is closed."""

    def __init__(self, path: Path, layout: RowLayout[Any, Any]) -> None:
        self._layout = layout
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, layout.schema)
        self._pending: list[EncodedRow] = []
        self._num_bytes = 0

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()
        self._file.close()

    def write(self, row: EncodedRow) -> None:
        """Append one row."""
        self._pending.append(row)
        self._num_bytes += row.size_bytes
        if self._num_bytes >= _BATCH_BYTES or len(self._pending) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        rows, self._pending, self._num_bytes = self._pending, [], 0
        if rows:
            self._writer.write_batch(self._layout.make_batch(rows))


class RowTable:
    """The rows in the file at `path`; rows are addressed by their index, from 0.

    `lengths` and `num_targets` have the shape `[num_rows]`: the length of each row, such as its
    tokens, and how many of its predictions the loss counts. `source_ends` has the end of the rows
    of each source, if there are several. Nothing else is held in memory: rows are read from the
    mapped file.
    """

    def __init__(self, path: Path, layout: RowLayout[Any, Any]) -> None:
        self._layout = layout
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self._batches = [reader.get_batch(place) for place in range(reader.num_record_batches)]
        sizes = [batch.num_rows for batch in self._batches]
        self._starts = np.cumsum([0, *sizes], dtype=np.int64)  # [num_batches + 1]
        self.lengths: Counts = self._gather(layout.measure_rows)
        self.num_targets: Counts = self._gather(layout.count_targets)
        sources = json.loads((reader.schema.metadata or {}).get(SOURCES_KEY, b"[]"))
        self._source_names = [str(name) for name, _ in sources]
        self.source_ends = np.cumsum([num_rows for _, num_rows in sources], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def begin(self, epoch: int, position: "WindowPosition", plan: "BatchPlan") -> None:
        """Announce that the rows of the steps from `position` on are read; every worker does.

        A table on disk needs no announcement.
        """

    def end(self) -> None:
        """Announce the end of a pass over validation rows."""

    def read_labels(self, indices: Sequence[int]) -> list[tuple[str, ...]]:
        """Read the column `labels` of rows."""
        places = (self._locate(index) for index in indices)
        return [tuple(read_list(batch, "labels", place).to_pylist()) for batch, place in places]

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Read the rows of a micro batch, in the form of the task's layout."""
        places = (self._locate(index) for index in indices)
        return [self._layout.read_row(batch, place) for batch, place in places]

    def find_lines(self, indices: Sequence[int]) -> list[int]:
        """Return the lines of rows in their files, in the order of `indices`."""
        places = (self._locate(index) for index in indices)
        return [int(view_column(batch, "line")[place]) for batch, place in places]

    def describe_rows(self, indices: Sequence[int]) -> str:
        """Name rows by their lines, as in 'lines 3, 9', grouped by source if there are several.

        At most 20 rows are named, the others are counted.
        """
        lines = self.find_lines(indices[:MAX_LINES_SHOWN])
        num_more = len(indices) - len(lines)
        if not self._source_names:
            return describe_lines(lines, len(indices))
        by_source: dict[str, list[int]] = {}
        for index, line in zip(indices, lines, strict=False):
            place = int(np.searchsorted(self.source_ends, index, side="right"))
            by_source.setdefault(self._source_names[place], []).append(line)
        named = [
            f"{describe_lines(found, len(found))} of {name}" for name, found in by_source.items()
        ]
        return ", ".join(named) + (f" and {num_more} more" if num_more else "")

    def iterate_batches(self) -> Sequence[Any]:
        """Return the record batches, in order."""
        return self._batches

    def _gather(self, measure: Callable[[Any], Counts]) -> Counts:
        parts = [measure(batch) for batch in self._batches]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _locate(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._batches[number], index - int(self._starts[number])


def read_numbers(path: Path) -> npt.NDArray[np.int64]:
    """Read the numbers of all rows of a table, shape `[num_rows]`.

    Samples of one row share a number.
    """
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    batches = [reader.get_batch(place) for place in range(reader.num_record_batches)]
    parts = [batch.column("number").to_numpy() for batch in batches]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def read_numbers_by_source(path: Path) -> list[npt.NDArray[np.int64]]:
    """Read the numbers of the rows of a table, for each of its sources in their order.

    A table that names no sources has one.
    """
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    sources = json.loads((reader.schema.metadata or {}).get(SOURCES_KEY, b"[]"))
    ends = np.cumsum([num_rows for _, num_rows in sources], dtype=np.int64)
    return np.split(read_numbers(path), ends[:-1]) if sources else [read_numbers(path)]


def count_truncated(table: RowTable) -> int:
    """Count the rows of a table that were truncated."""
    return sum(
        int(np.count_nonzero(view_column(batch, "truncated_tokens")))
        for batch in table.iterate_batches()
    )


def split_table(source: Path, chosen: Mask, chosen_file: Path, other_file: Path) -> None:
    """Copy the rows of a file into two: those with `chosen[row]`, and the others, in order.

    `chosen` has the shape `[num_rows]`.
    """
    reader = pa.ipc.open_file(pa.memory_map(str(source)))
    with (
        pa.OSFile(str(chosen_file), "wb") as chosen_sink,
        pa.OSFile(str(other_file), "wb") as other_sink,
        pa.ipc.new_file(chosen_sink, reader.schema) as chosen_writer,
        pa.ipc.new_file(other_sink, reader.schema) as other_writer,
    ):
        start = 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            mask = chosen[start : start + batch.num_rows]
            start += batch.num_rows
            chosen_writer.write_batch(batch.filter(pa.array(mask)))
            other_writer.write_batch(batch.filter(pa.array(~mask)))


def view_column(batch: Any, name: str) -> Counts:
    """Return a numeric column of a record batch as an array, without a copy."""
    view: Counts = batch.column(name).to_numpy()
    return view


def make_lists(arrays: Sequence[npt.NDArray[Any]], kind: pa.DataType) -> Any:
    """Return a column of lists, one for each array; at least one array."""
    offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(arrays), kind))


def measure_lists(batch: Any, name: str) -> Counts:
    """Return the length of each list of a column; shape `[num_rows]`."""
    lengths: Counts = np.diff(batch.column(name).offsets.to_numpy())
    return lengths


def read_list(batch: Any, name: str, place: int) -> Any:
    """Return one list of a column as a slice of its values, a `pyarrow.Array`."""
    column = batch.column(name)
    start, end = column.offsets[place].as_py(), column.offsets[place + 1].as_py()
    return column.values.slice(start, end - start)
