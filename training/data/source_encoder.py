"""Encoding of the rows of one source into a table; one implementation for each data engine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from system.byte_progress import ByteMeter
from training.data.readers import RowSource
from training.data.row_counts import RowCounts
from training.data.row_stream import RowStream
from training.data.row_table import RowLayout, RowWriter
from training.spec import TrainingSpec
from training.task import TaskData


class EncodedSource(NamedTuple):
    """A description of the rows of a source, such as their format, and their counts."""

    description: Mapping[str, Any]
    counts: RowCounts


class SourceEncoder(Protocol):
    """Checks and encodes the rows of sources, and writes what a run needs of them."""

    @property
    def layout(self) -> RowLayout[Any, Any]:
        """How the rows of its tables are stored."""

    def describe_inputs(self) -> Mapping[str, Any]:
        """Return what determines its tables, besides what determines the encoded rows."""

    def encode(
        self,
        sources: Sequence[RowSource],
        fallback: str | None,
        max_rows: int | None,
        table: Path,
        meter: ByteMeter,
    ) -> EncodedSource:
        """Write the table of the first source, or of its first `max_rows` rows.

        The other sources probably follow, with the same arguments. `fallback` is the format of
        rows whose format is not recognised. Raises `DataError` for rows that cannot be used.
        """


class LocalEncoder:
    """Encodes rows in this process; its tables contain them whole."""

    def __init__(self, spec: TrainingSpec, data: TaskData) -> None:
        self.layout = data.layout
        self._spec = spec
        self._data = data

    def describe_inputs(self) -> Mapping[str, Any]:
        """Return nothing."""
        return {}

    def encode(
        self,
        sources: Sequence[RowSource],
        fallback: str | None,
        max_rows: int | None,
        table: Path,
        meter: ByteMeter,
    ) -> EncodedSource:
        """Write the rows of the first source, in one pass over it."""
        source = sources[0]
        reader = self._data.open_reader(source, fallback)
        stream = RowStream(source, reader, self._data.max_length, self._spec.overlong)
        with RowWriter(table, self.layout) as writer:
            for row in stream.encode(max_rows, lambda: meter.report(source.position)):
                writer.write(row)
        return EncodedSource(stream.describe(), stream.counts)


def open_encoder(spec: TrainingSpec, data: TaskData) -> SourceEncoder:
    """Open the encoder of the spec's data engine."""
    if spec.data_engine == "local":
        return LocalEncoder(spec, data)
    from training.data.ray_data.check import RayEncoder

    return RayEncoder(spec, data)
