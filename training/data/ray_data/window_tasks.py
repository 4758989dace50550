"""The second pass: tasks that read and encode the rows of a window, in the order of its steps.

The pieces of a window go to the workers in turn, so the first of every `world_size` pieces belongs
to the first worker. Each piece contains the rows of several steps of its worker.
"""

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.batching import (
    BatchPlan,
    EpochPlan,
    Step,
    choose_evaluation_windows,
    choose_windows,
    plan_evaluation_window,
    plan_window,
)
from training.data.faults import ChangedRowsError, DataError, RowRole
from training.data.ray_data.encoding import EncodingSettings, SpanEncoder
from training.data.ray_data.requests import StreamRequest, read_request
from training.data.ray_data.row_index import IndexLayout, RowFinder, SourceRows
from training.data.readers import RowSource
from training.data.row_table import RowTable
from training.data.rows import EncodedRow
from training.data.sources import open_train_sources, open_validation_sources
from training.spec import TrainingSpec
from training.task import find_task

_PIECE_BYTES = 1 << 20  # of each worker
INDEX_COLUMN = "index"


@dataclass(frozen=True)
class PrepareWindow:
    """The work of a task: prepare the rows of one window; pickled once for all tasks."""

    spec: str
    data: str
    role: RowRole
    fallback: str | None

    def __call__(self, item: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the pieces of a window, each a table of one row; `item` has its number as `id`."""
        request = read_request(Path(self.data), self.role)
        window = _open_windows(self).locate(request, int(item["id"][0]))
        if window is None:
            return
        epoch, number, first = window
        try:
            pieces = _open_windows(self).prepare(request, epoch, number, first)
            for num_reads, content in pieces:
                yield _make_row(epoch, number, num_reads, content)
        except (DataError, ChangedRowsError, OSError) as exc:
            for _ in range(request.world_size):  # all workers must end together
                yield _make_row(epoch, number, 1, b"", *_describe_error(exc))


def _describe_error(exc: Exception) -> tuple[str, int]:
    """Return the message of an error, and its number if reading failed, else 0.

    An `OSError` of Arrow, as for a file in a bucket, has no number: it counts as `EIO`.
    """
    if not isinstance(exc, OSError):
        return str(exc) or type(exc).__name__, 0
    place = f"{Path(exc.filename).name}: " if isinstance(exc.filename, str) else ""
    return f"{place}{exc.strerror or exc or type(exc).__name__}", exc.errno or errno.EIO


def _make_row(
    epoch: int, window: int, num_reads: int, content: bytes, error: str = "", error_number: int = 0
) -> Any:
    return pa.table(
        {
            "epoch": pa.array([epoch], pa.int64()),
            "window": pa.array([window], pa.int64()),
            "num_reads": pa.array([num_reads], pa.int64()),
            "content": pa.array([content], pa.large_binary()),
            "error": pa.array([error], pa.string()),
            "error_number": pa.array([error_number], pa.int64()),
        }
    )


@lru_cache(maxsize=2)
def _open_windows(work: PrepareWindow) -> "_Windows":
    return _Windows(work)


class _Windows:
    """The windows of a set of rows; a process opens it once."""

    def __init__(self, work: PrepareWindow) -> None:
        spec = TrainingSpec.model_validate_json(work.spec)
        self._settings = EncodingSettings(work.spec, work.fallback)
        self._spec = spec
        self._is_training = work.role == "training"
        self._layout = find_task(spec.task).open_data(spec).layout
        self._table = RowTable(Path(work.data) / choose_table(work.role), IndexLayout(self._layout))
        self._finder = RowFinder(self._table)
        self._sources = list_sources(spec, work.role)

    @lru_cache(maxsize=2)  # noqa: B019 - lives as long as the process
    def _choose(self, plan: BatchPlan, epoch: int) -> list[npt.NDArray[np.int64]]:
        lengths = self._table.lengths
        if self._is_training:
            return choose_windows(lengths, plan, epoch)
        return choose_evaluation_windows(lengths, plan)

    def locate(self, request: StreamRequest, number: int) -> tuple[int, int, int] | None:
        """Return the epoch of a window of the stream, its number there, and its first step."""
        num_windows = len(self._choose(self._plan(request), 0))
        epochs, window = divmod(request.window + number, num_windows)
        epoch = request.epoch + epochs
        if epoch >= (self._spec.epochs if self._is_training else 1):
            return None
        return epoch, window, request.step if number == 0 else 0

    def _plan(self, request: StreamRequest) -> BatchPlan:
        return BatchPlan.from_spec(self._spec, request.layout, request.num_shares)

    def prepare(
        self, request: StreamRequest, epoch: int, number: int, first: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the pieces of a window from its step `first` on, for the workers in turn.

        Each is the number of its micro batches, the same for all workers, and its rows.
        """
        plan = self._plan(request)
        rows = self._choose(plan, epoch)[number]
        steps = self._plan_steps(rows, plan, epoch, number)
        used = [steps[place] for place in range(first, len(steps))]
        encoded = self._encode(np.array([row for step in used for row in step.rows], np.int64))
        for group in _group_steps(used, encoded, _PIECE_BYTES * request.world_size):
            for rank in range(request.world_size):
                batches = [
                    batch
                    for step in group
                    for batch in step.select_micro_batches(rank, request.world_size)
                ]
                indices = [row for batch in batches for row in batch]
                yield len(batches), self._write([encoded[row] for row in indices], indices)

    def _plan_steps(
        self, rows: npt.NDArray[np.int64], plan: BatchPlan, epoch: int, number: int
    ) -> EpochPlan:
        lengths = self._table.lengths
        if self._is_training:
            return plan_window(rows, lengths, plan, epoch, number)
        return plan_evaluation_window(rows, lengths, plan)

    def _encode(self, rows: npt.NDArray[np.int64]) -> dict[int, EncodedRow]:
        """Read and encode rows; returns each by its index."""
        encoded: dict[int, EncodedRow] = {}
        for found in self._finder.find(rows):
            source = self._sources[found.source]
            wanted = {place for place, _ in found.indices}
            encoder = SpanEncoder(source, self._settings)
            for place, part, row in encoder.encode(found.spans, wanted):
                for index in found.indices.get((place, part), ()):
                    encoded[index] = row
            self._check(found, encoded, source.name)
        return encoded

    def _check(self, found: SourceRows, encoded: dict[int, EncodedRow], name: str) -> None:
        lengths = self._table.lengths
        for indices in found.indices.values():
            for index in indices:
                if index not in encoded or encoded[index].length != lengths[index]:
                    (line,) = self._table.find_lines([index])
                    raise ChangedRowsError(
                        f"{name} has changed since its rows were checked: the row of line {line} "
                        "is not the same; restore the file, or start a new run"
                    )

    def _write(self, rows: Sequence[EncodedRow], indices: Sequence[int]) -> bytes:
        if not rows:
            return b""
        batch = self._layout.make_batch(rows)
        batch = batch.append_column(INDEX_COLUMN, pa.array(indices, pa.int64()))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        content: bytes = sink.getvalue().to_pybytes()
        return content


def _group_steps(
    steps: Sequence[Step], encoded: Mapping[int, EncodedRow], max_bytes: int
) -> Iterator[list[Step]]:
    """Group steps with rows of up to `max_bytes` together, at least one."""
    group: list[Step] = []
    num_bytes = 0
    for step in steps:
        size = sum(encoded[row].size_bytes for row in step.rows)
        if group and num_bytes + size > max_bytes:
            yield group
            group, num_bytes = [], 0
        group.append(step)
        num_bytes += size
    if group:
        yield group


def choose_table(role: RowRole) -> str:
    """Return the file name of the index of these rows."""
    return "train.arrow" if role == "training" else "validation.arrow"


def list_sources(spec: TrainingSpec, role: RowRole) -> list[RowSource]:
    """Open the sources of rows; those held out of the training rows are in the sources of these."""
    is_held_out = role == "validation" and spec.validation_fraction
    sources = (
        open_train_sources(spec)
        if role == "training" or is_held_out
        else open_validation_sources(spec)
    )
    return [one.source for one in sources]
