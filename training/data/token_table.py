"""The rows of a run as tokens on disk: an Arrow file, written in a stream, read memory-mapped."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.encoding import EncodedRow, Mask, TokenIds
from training.data.faults import MAX_LINES_SHOWN, describe_lines

_BATCH_TOKENS = 1 << 20
_BATCH_ROWS = 1 << 14
SCHEMA = pa.schema(
    [
        ("line", pa.int64()),
        ("number", pa.int64()),
        ("input_ids", pa.list_(pa.int32())),
        ("learned", pa.list_(pa.bool_())),
        ("num_learned", pa.int32()),
        ("truncated_tokens", pa.int32()),
    ]
)

SOURCES_KEY = b"sources"
"""Metadata key of a table of several sources: JSON of [name, num_rows] for each, in order."""

Counts = npt.NDArray[np.int32]


class TokenWriter:
    """Writes rows to a new file in record batches; complete once it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, SCHEMA)
        self._pending: list[EncodedRow] = []
        self._num_tokens = 0

    def __enter__(self) -> "TokenWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()
        self._file.close()

    def write(self, row: EncodedRow) -> None:
        """Append one row."""
        self._pending.append(row)
        self._num_tokens += len(row.input_ids)
        if self._num_tokens >= _BATCH_TOKENS or len(self._pending) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        rows, self._pending, self._num_tokens = self._pending, [], 0
        if rows:
            self._writer.write_batch(_make_batch(rows))


def _make_batch(rows: list[EncodedRow]) -> Any:
    offsets = np.cumsum([0, *(len(row.input_ids) for row in rows)], dtype=np.int32)
    ids = np.concatenate([row.input_ids for row in rows])
    learned = np.concatenate([row.learned for row in rows])
    columns = [
        pa.array([row.line for row in rows], pa.int64()),
        pa.array([row.number for row in rows], pa.int64()),
        pa.ListArray.from_arrays(offsets, pa.array(ids, pa.int32())),
        pa.ListArray.from_arrays(offsets, pa.array(learned, pa.bool_())),
        pa.array([row.num_learned for row in rows], pa.int32()),
        pa.array([row.truncated_tokens for row in rows], pa.int32()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


class TokenTable:
    """Rows of tokens in the file at `path`; rows are addressed by their index, from 0.

    `lengths` and `num_learned` have the shape `[num_rows]`: the number of tokens of each row, and
    of those that the loss counts. Nothing else is held in memory: rows are read from the mapped
    file.
    """

    def __init__(self, path: Path) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self._batches = [reader.get_batch(place) for place in range(reader.num_record_batches)]
        sizes = [batch.num_rows for batch in self._batches]
        self._starts = np.cumsum([0, *sizes], dtype=np.int64)  # [num_batches + 1]
        self.lengths: Counts = self._gather(_measure_rows)
        self.num_learned: Counts = self._gather(lambda batch: _view(batch, "num_learned"))
        sources = json.loads((reader.schema.metadata or {}).get(SOURCES_KEY, b"[]"))
        self._source_names = [str(name) for name, _ in sources]
        self._source_ends = np.cumsum([num_rows for _, num_rows in sources], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, indices: Sequence[int]) -> list[tuple[TokenIds, Mask]]:
        """Read the token ids and learned masks of rows, each of shape `[length]`."""
        return [self._read_row(index) for index in indices]

    def find_lines(self, indices: Sequence[int]) -> list[int]:
        """Return the lines of rows in their files, in the order of `indices`."""
        places = (self._locate(index) for index in indices)
        return [int(_view(batch, "line")[place]) for batch, place in places]

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
            place = int(np.searchsorted(self._source_ends, index, side="right"))
            by_source.setdefault(self._source_names[place], []).append(line)
        named = [
            f"{describe_lines(found, len(found))} of {name}" for name, found in by_source.items()
        ]
        return ", ".join(named) + (f" and {num_more} more" if num_more else "")

    def read_numbers(self) -> npt.NDArray[np.int64]:
        """Read the numbers of all rows, shape `[num_rows]`; samples of one row share a number."""
        parts = [batch.column("number").to_numpy() for batch in self._batches]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def count_truncated(self) -> int:
        """Count the rows that were truncated."""
        return sum(
            int(np.count_nonzero(_view(batch, "truncated_tokens"))) for batch in self._batches
        )

    def _gather(self, measure: Any) -> Counts:
        parts = [measure(batch) for batch in self._batches]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _locate(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._batches[number], index - int(self._starts[number])

    def _read_row(self, index: int) -> tuple[TokenIds, Mask]:
        batch, place = self._locate(index)
        ids, learned = batch.column("input_ids"), batch.column("learned")
        start, end = ids.offsets[place].as_py(), ids.offsets[place + 1].as_py()
        mask = learned.values.slice(start, end - start).to_numpy(zero_copy_only=False)
        return ids.values.slice(start, end - start).to_numpy(), mask


def split_table(source: Path, chosen: Mask, chosen_file: Path, other_file: Path) -> None:
    """Copy the rows of a file into two: those with `chosen[row]`, and the others, in order.

    `chosen` has the shape `[num_rows]`.
    """
    reader = pa.ipc.open_file(pa.memory_map(str(source)))
    with (
        pa.OSFile(str(chosen_file), "wb") as chosen_sink,
        pa.OSFile(str(other_file), "wb") as other_sink,
        pa.ipc.new_file(chosen_sink, SCHEMA) as chosen_writer,
        pa.ipc.new_file(other_sink, SCHEMA) as other_writer,
    ):
        start = 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            mask = chosen[start : start + batch.num_rows]
            start += batch.num_rows
            chosen_writer.write_batch(batch.filter(pa.array(mask)))
            other_writer.write_batch(batch.filter(pa.array(~mask)))


def _measure_rows(batch: Any) -> Counts:
    lengths: Counts = np.diff(batch.column("input_ids").offsets.to_numpy())
    return lengths


def _view(batch: Any, name: str) -> Counts:
    view: Counts = batch.column(name).to_numpy()
    return view
