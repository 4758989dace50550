"""The reader of rows for a language model: chats, prompts with completions, and plain text."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from model_files.end_ids import list_end_ids
from templating.render_fork_server import render_fork_server
from training.data.chat.rendering import ChatSettings, TemplateStoppedError
from training.data.faults import DataError, RowFault
from training.data.readers import RowSource
from training.data.text.encoding import RowEncoder, TokenSample
from training.data.text.formats import Row, RowParser, choose_parser
from training.settings.source_settings import DataFormat
from training.spec import TrainingSpec


class TextReader:
    """Reads the rows of one source as tokens with a mask of learned tokens.

    `fallback` is the format of rows whose format is not recognised. `end_ids` are the tokens at
    which the model stops generating, by default its tokenizer's.
    """

    def __init__(
        self,
        source: RowSource,
        spec: TrainingSpec,
        tokenizer: PreTrainedTokenizerBase,
        fallback: str | None = None,
        end_ids: tuple[int, ...] | None = None,
    ) -> None:
        if tokenizer.chat_template is not None:
            render_fork_server.start()  # ready by the time the first rows have been read
        if end_ids is None:
            end_ids = list_end_ids(None, tokenizer)
        self._source = source
        self._spec = spec
        self._fallback = fallback
        self._end_ids = end_ids
        settings = ChatSettings(spec.learned_turns, spec.reasoning, end_ids)
        self._encoder = RowEncoder(tokenizer, settings)
        self._parser: RowParser | None = None

    @property
    def format(self) -> DataFormat | None:
        """The format of the rows; None before the first record."""
        return None if self._parser is None else self._parser.format

    def parse(self, line: int, record: Any, number: int) -> Row:
        """Parse one record, the row with this number.

        Raises `RowFault`, and `DataError` if the first row has no known format.
        """
        if self._parser is None:
            self._parser = self._choose_parser(record)
        return self._parser.parse(line, record, number)

    def _choose_parser(self, record: object) -> RowParser:
        try:
            return choose_parser(record, self._spec.format, self._spec.columns)
        except DataError as exc:
            if self._fallback is None:
                raise DataError(f"{self._source.name}: {exc}") from exc
        return RowParser(cast(DataFormat, self._fallback), self._spec.columns)

    def encode(
        self, batches: Iterable[Sequence[Row]]
    ) -> Iterator[tuple[Row, TokenSample | RowFault]]:
        """Tokenise rows; raises `DataError` if the chat template exceeds its limits."""
        try:
            yield from self._encoder.encode(batches)
        except TemplateStoppedError as exc:
            name, unit = self._source.name, self._source.unit
            raise DataError(f"{name}: {unit} {exc.line}: {exc}") from exc

    def describe(self) -> dict[str, Any]:
        """Return whether the model has a token at which it stops generating."""
        return {"has_end_token": bool(self._end_ids)}

    def close(self) -> None:
        """Stop the process that renders chat templates."""
        self._encoder.close()
