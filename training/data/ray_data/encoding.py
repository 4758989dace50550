"""Encoding of the rows of spans, in a task of a pipeline."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from training.data.faults import RowFault
from training.data.ray_data.spans import Span, SpanSource
from training.data.readers import RowSource
from training.data.row_stream import RowStream
from training.data.rows import EncodedRow
from training.spec import TrainingSpec
from training.task import TaskData, find_task


@dataclass(frozen=True)
class EncodingSettings:
    """The spec, as JSON because tasks cache what they open for it, and the fallback format."""

    spec: str
    fallback: str | None = None


class SpanEncoder:
    """Encodes the rows of one source exactly as the engine `local` does."""

    def __init__(self, source: RowSource, settings: EncodingSettings) -> None:
        self.data, self._spec = _open_data(settings.spec)
        self._source = source
        self._reader = self.data.open_reader(source, settings.fallback)
        self._prime_reader()

    def _prime_reader(self) -> None:
        """Show the reader the first record of the source, by which it chooses the format."""
        for line, record in self._source.read():
            if isinstance(record, RowFault):
                continue
            with suppress(RowFault):
                self._reader.parse(line, record, 1)
            break

    @property
    def has_format(self) -> bool:
        """Whether the format is known: the source has a row."""
        return self._reader.format is not None

    def open_stream(self, read: SpanSource, num_before: int = 0) -> RowStream[Any, Any]:
        """Open the stream of the rows of spans, once; `num_before` rows precede them."""
        return RowStream(read, self._reader, self.data.max_length, self._spec.overlong, num_before)

    def encode(
        self, spans: Sequence[Span], wanted: set[int]
    ) -> Iterator[tuple[int, int, EncodedRow]]:
        """Yield the samples of the rows at the places `wanted`, with their places and parts."""
        read = SpanSource(self._source, spans, wanted)
        stream = self.open_stream(read)
        last, part = 0, 0
        for row in stream.encode_unchecked():
            part = part + 1 if row.number == last else 0
            last = row.number
            yield read.places[row.number - 1], part, row


@lru_cache(maxsize=2)
def _open_data(spec: str) -> tuple[TaskData, TrainingSpec]:
    opened = TrainingSpec.model_validate_json(spec)
    return find_task(opened.task).open_data(opened), opened
