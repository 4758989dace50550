"""The rows of a run as a worker receives them: streamed in the order of its steps."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from training.batching import BatchPlan, WindowPosition
from training.data.faults import ChangedRowsError, RowRole
from training.data.ray_data.requests import StreamRequest
from training.data.ray_data.row_index import IndexLayout
from training.data.ray_data.window_tasks import INDEX_COLUMN, choose_table
from training.data.row_table import RowLayout, RowTable, view_column
from training.place import Place

_MAX_HELD_TOKENS = 1 << 20


class Piece:
    """The rows of several micro batches of a worker, of which `num_reads` are still to be read."""

    def __init__(self, num_reads: int = 0, content: Any = None) -> None:
        self.num_reads = num_reads
        self._next = 0
        self._batch: Any = None
        self._indices: Any = ()
        if content is not None and content.size:
            self._batch = pa.ipc.open_stream(content).read_next_batch()
            self._indices = view_column(self._batch, INDEX_COLUMN)

    def take(self, indices: Sequence[int], layout: RowLayout[Any, Any]) -> list[Any]:
        """Take the rows of the next micro batch; raises `RuntimeError` for other rows."""
        first, end = self._next, self._next + len(indices)
        found = list(self._indices[first:end])
        if found != list(indices):
            raise RuntimeError(
                f"the stream of rows is in another order than the plan: found {found[:5]}, "
                f"expected {list(indices)[:5]}"
            )
        self.num_reads -= 1
        self._next = end
        return [layout.read_row(self._batch, place) for place in range(first, end)]


class StreamedRows(RowTable):
    """A table whose content is a stream: rows are read once, in the order of the steps.

    The index is a file. Validation rows are kept in memory after the first evaluation if all of
    them together are few.
    """

    def __init__(
        self,
        data: Path,
        role: RowRole,
        layout: RowLayout[Any, Any],
        shard: Any,
        place: Place,
    ) -> None:
        super().__init__(data / choose_table(role), IndexLayout(layout))
        self._content = layout
        self._data = data
        self._role: RowRole = role
        self._shard = shard
        self._place = place
        self._request: StreamRequest | None = None
        self._blocks: Iterator[Any] | None = None
        self._piece = Piece()
        is_small = int(self.lengths.sum(dtype="int64")) <= _MAX_HELD_TOKENS
        self._held: dict[int, Any] | None = {} if role == "validation" and is_small else None

    def begin(self, epoch: int, position: WindowPosition, plan: BatchPlan) -> None:
        """Start the stream at a step; every worker must call this together."""
        if self._held is not None and self._request is not None:
            return
        self._start(
            StreamRequest(
                epoch=epoch,
                window=position.window,
                step=position.step,
                world_size=self._place.world_size,
                num_shares=plan.num_shares,
                layout=plan.layout,
            )
        )

    def _start(self, request: StreamRequest) -> None:
        if self._place.rank == 0:
            request.save(self._data, self._role)
        self._request = request
        self._piece = Piece()
        # The execution starts once all workers iterate, so after the request was written.
        self._blocks = iter(
            self._shard.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
        )

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Receive the rows of this worker's next micro batch, which must be these.

        All workers must call this equally often, also for micro batches without rows.
        """
        if self._held is not None and self._blocks is None:
            return [self._held[index] for index in indices]
        if not self._piece.num_reads:
            self._piece = self._receive()
        rows = self._piece.take(indices, self._content)
        if self._held is not None:
            self._held.update(zip(indices, rows, strict=True))
        return rows

    def end(self) -> None:
        """End a pass over validation rows."""
        self._blocks = None

    def _receive(self) -> Piece:
        """Wait for the next piece of a window; start another execution after the last.

        Raises `ChangedRowsError`, or the `OSError` with which reading failed, on all workers.
        """
        assert self._blocks is not None, "begin() comes first"
        assert self._request is not None
        block = next(self._blocks, None)
        if block is None:
            self._start(self._request)
            block = next(self._blocks, None)
        if block is None:
            raise RuntimeError("the stream of rows has ended before the last step")
        row = {name: block[name][0].as_py() for name in block.column_names if name != "content"}
        if row["error_number"]:
            raise OSError(row["error_number"], row["error"])
        if row["error"]:
            raise ChangedRowsError(row["error"])
        self._request = self._request.model_copy(
            update={"epoch": row["epoch"], "window": row["window"] + 1, "step": 0}
        )
        return Piece(row["num_reads"], block["content"].chunk(0)[0].as_buffer())
