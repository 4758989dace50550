"""Streaming of one source of rows to encoded rows, with counts of the rows that are left out."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from model_files.end_ids import list_end_ids
from templating.fork_server import render_fork_server
from training.data.chat.rendering import ChatSettings, TemplateStoppedError
from training.data.encoding import EncodedRow, RowEncoder
from training.data.faults import (
    MAX_LINES_SHOWN,
    DataError,
    IgnoredKeys,
    RowFault,
    RowFaultLog,
    describe_lines,
)
from training.data.formats import Row, RowParser, choose_parser
from training.data.readers import RowSource
from training.spec import DataFormat, TrainingSpec

# Both limit a batch; a row with more bytes than the second is a batch of one row.
_BATCH_ROWS = 512
_BATCH_BYTES = 1 << 18


class RowStream:
    """Reads, parses and encodes the rows of one source, and fits them to `max_length`.

    `fallback` is the format of rows whose format is not recognised. `end_ids` are the tokens at
    which the model stops generating, by default its tokenizer's. The counts are final once `encode`
    is exhausted.
    """

    def __init__(
        self,
        source: RowSource,
        spec: TrainingSpec,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        fallback: DataFormat | None = None,
        end_ids: tuple[int, ...] | None = None,
    ) -> None:
        if tokenizer.chat_template is not None:
            render_fork_server.start()  # ready by the time the first rows have been read
        self.source = source
        self.num_rows = 0
        self.num_dropped = 0
        self.dropped_lines: list[int] = []  # the first of them
        self.num_split = 0  # rows that became several samples
        self._noted: dict[str, int] = {}  # the number of the last row noted, by kind of note
        self.ignored_keys = IgnoredKeys()
        self._spec = spec
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._fallback = fallback
        if end_ids is None:
            end_ids = list_end_ids(None, tokenizer)
        self._settings = ChatSettings(spec.learned_turns, spec.reasoning, end_ids)
        self._parser: RowParser | None = None
        self._faults = RowFaultLog(source.name, source.unit)

    @property
    def has_end_token(self) -> bool:
        """Whether the model has a token at which it stops generating."""
        return bool(self._settings.end_ids)

    @property
    def format(self) -> DataFormat:
        """The format of the rows; raises `DataError` if there are none."""
        if self._parser is None:
            raise DataError(f"{self.source.name} holds no rows: expected at least one")
        return self._parser.format

    def encode(
        self, num_rows: int | None = None, on_read: Callable[[], None] = lambda: None
    ) -> Generator[EncodedRow, None, None]:
        """Yield the samples of the rows, or of the first `num_rows`, that can be learned from.

        Calls `on_read` for every row read, whether it can be learned from or not. Raises
        `DataError` at the end, for all rows together, if any cannot be used; immediately if the
        first row has no known format, or if the chat template exceeds its limits.
        """
        num_samples = 0
        with RowEncoder(self._tokenizer, self._settings) as encoder:
            try:
                for row, encoded in encoder.encode(_form_batches(self._parse(num_rows, on_read))):
                    if isinstance(encoded, EncodedRow) and encoded.is_part:
                        self.num_split += self._is_first(row, "split")
                    fitted = self._fit(row, encoded)
                    if fitted is not None:
                        num_samples += 1
                        yield replace(fitted, number=row.number)
            except TemplateStoppedError as exc:
                raise DataError(
                    f"{self.source.name}: {self.source.unit} {exc.line}: {exc}"
                ) from exc
        self._faults.raise_if_any(self.num_rows)
        if not num_samples and self.format:
            lines = describe_lines(self.dropped_lines, self.num_dropped, self.source.unit)
            raise DataError(
                f"{self.source.name}: no row is left: all have more than max_length "
                f"{self._max_length} tokens, or no answer within them ({lines}); raise max_length"
            )

    def _parse(self, num_rows: int | None, on_read: Callable[[], None]) -> Iterator[Row]:
        for line, record in self.source.read():
            self.num_rows += 1
            on_read()
            try:
                row = self._parse_record(line, record)
            except RowFault as fault:
                self._faults.add(line, fault)
            else:
                self.ignored_keys.add(row.ignored)
                yield row
            if self.num_rows == num_rows:
                return

    def _parse_record(self, line: int, record: object) -> Row:
        if isinstance(record, RowFault):
            raise record
        if self._parser is None:
            self._parser = self._choose_parser(record)
        return self._parser.parse(line, record, self.num_rows)

    def _choose_parser(self, record: object) -> RowParser:
        try:
            return choose_parser(record, self._spec.format, self._spec.columns)
        except DataError as exc:
            if self._fallback is None:
                raise DataError(f"{self.source.name}: {exc}") from exc
        return RowParser(self._fallback, self._spec.columns)

    def _fit(self, row: Row, encoded: EncodedRow | RowFault) -> EncodedRow | None:
        """Fit a sample to `max_length`; record why it is left out, and return None, if it is.

        A row counts once, however many of its samples are left out.
        """
        if isinstance(encoded, RowFault):
            self._add_fault(row, encoded)
            return None
        num_tokens = len(encoded.input_ids)
        if encoded.num_learned == 0:
            self._add_fault(row, RowFault("nothing in its {} tokens is learned", num_tokens))
            return None
        if num_tokens <= self._max_length:
            return encoded
        if self._spec.overlong == "refuse":
            pattern = (
                "{} tokens, more than max_length {}; shorten it, or set overlong to 'truncate'"
            )
            self._add_fault(row, RowFault(pattern, num_tokens, self._max_length))
            return None
        cut = encoded.truncate(self._max_length)
        if self._spec.overlong == "truncate" and cut.num_learned:
            return cut
        if self._is_first(row, "dropped"):
            self.num_dropped += 1
            if len(self.dropped_lines) < MAX_LINES_SHOWN:
                self.dropped_lines.append(row.line)
        return None

    def _add_fault(self, row: Row, fault: RowFault) -> None:
        if self._is_first(row, "faulty"):
            self._faults.add(row.line, fault)

    def _is_first(self, row: Row, what: str) -> bool:
        """Return whether `what` is noted for a row for the first time; its samples are adjacent."""
        is_first = self._noted.get(what) != row.number
        self._noted[what] = row.number
        return is_first


def _form_batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    num_bytes = 0
    for row in rows:
        size_bytes = row.measure.size_bytes
        if batch and (len(batch) == _BATCH_ROWS or num_bytes + size_bytes > _BATCH_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(row)
        num_bytes += size_bytes
    if batch:
        yield batch
