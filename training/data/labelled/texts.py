"""Rows of one or two texts with a label: parsing, tokens, and their columns in a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from model_files.tokenizer_faults import translate_faults
from training.data.faults import DataError, RowFault, show_names, show_value
from training.data.labelled.labels import LABEL_COLUMNS, get_labels, list_columns
from training.data.readers import RowSource
from training.data.row_limits import MAX_TEXT_BYTES, check_size
from training.data.row_table import Counts, make_lists, measure_lists, read_list
from training.data.text.messages import get_text

PAIR_COLUMNS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("#1 String", "#2 String"),  # the Microsoft Research Paraphrase Corpus, as it is published
)
TEXT_COLUMNS = ("text", "sentence", "content", "review")
_PAIRED_COLUMNS = tuple(name for pair in PAIR_COLUMNS for name in pair)
COLUMN_NAMES = tuple(dict.fromkeys([*_PAIRED_COLUMNS, *TEXT_COLUMNS, *LABEL_COLUMNS]))
_KEYS = ("text", "text_pair", "label")

Ids = npt.NDArray[np.int32]


class Columns(NamedTuple):
    """The columns of the texts of a row, one or two, and of its label."""

    texts: tuple[str, ...]
    label: str

    def describe(self) -> str:
        """Name the columns, for messages."""
        return f"{' and '.join(self.texts)} with {self.label}"


def choose_columns(record: Any, mapped: Mapping[str, str]) -> Columns:
    """Choose the columns by the first row; `mapped` are those that the spec names.

    Raises `DataError` that says what is missing.
    """
    keys = list_columns(record, mapped, _KEYS)
    label = mapped.get("label") or next((name for name in LABEL_COLUMNS if name in keys), None)
    texts = _choose_texts(keys, mapped)
    if label is None or texts is None:
        what = "label" if label is None else "text"
        example = f'{{"text": {show_value(keys[0] if keys else "")}, "label": "class"}}'
        raise DataError(
            f"the first row has no column for the {what}: found {show_names(keys)}; expected "
            f"'text' and 'label', or set columns, as in {example}"
        )
    return Columns(texts, label)


def _choose_texts(keys: Sequence[str], mapped: Mapping[str, str]) -> tuple[str, ...] | None:
    if "text" in mapped:
        return tuple(mapped[key] for key in ("text", "text_pair") if key in mapped)
    if "text_pair" in mapped:
        return None
    for pair in PAIR_COLUMNS:
        if set(pair) <= set(keys):
            return pair
    return next(((name,) for name in TEXT_COLUMNS if name in keys), None)


@dataclass(frozen=True)
class LabelledText:
    """One parsed row; `labels` are the names of its classes, or its number as text."""

    line: int
    number: int
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of its texts."""
        return sum(len(text.encode()) for text in self.texts)


@dataclass(frozen=True)
class LabelledSample:
    """One row as tokens; `type_ids` tell the two texts apart and may be empty; both `[length]`."""

    line: int
    number: int
    input_ids: Ids
    type_ids: npt.NDArray[np.uint8]
    labels: tuple[str, ...]
    truncated_tokens: int = 0
    is_part: bool = False

    @property
    def length(self) -> int:
        """Its tokens."""
        return len(self.input_ids)

    @property
    def num_targets(self) -> int:
        """One: the loss compares the row's output with its label."""
        return 1

    @property
    def size_bytes(self) -> int:
        """Its size in a table."""
        return self.input_ids.nbytes + self.type_ids.nbytes + sum(map(len, self.labels))

    def truncate(self, max_length: int) -> "LabelledSample":  # noqa: ARG002 - the protocol's
        """Return itself: the tokenizer has truncated rows that may be truncated."""
        return self

    def renumber(self, number: int) -> "LabelledSample":
        """Return a copy with the number of its row."""
        return replace(self, number=number)


class LabelledRow(NamedTuple):
    """A row as its table returns it."""

    input_ids: Ids
    type_ids: npt.NDArray[np.uint8]
    labels: tuple[str, ...]


class LabelledLayout:
    """Rows of tokens with labels: a length counts tokens, and every row is one target."""

    schema = pa.schema(
        [
            ("line", pa.int64()),
            ("number", pa.int64()),
            ("input_ids", pa.list_(pa.int32())),
            ("type_ids", pa.list_(pa.uint8())),
            ("labels", pa.list_(pa.string())),
            ("truncated_tokens", pa.int32()),
        ]
    )

    def make_batch(self, rows: Sequence[LabelledSample]) -> Any:
        """Return the rows as a record batch."""
        columns = [
            pa.array([row.line for row in rows], pa.int64()),
            pa.array([row.number for row in rows], pa.int64()),
            make_lists([row.input_ids for row in rows], pa.int32()),
            make_lists([row.type_ids for row in rows], pa.uint8()),
            pa.array([list(row.labels) for row in rows], pa.list_(pa.string())),
            pa.array([row.truncated_tokens for row in rows], pa.int32()),
        ]
        return pa.record_batch(columns, schema=self.schema)

    def measure_rows(self, batch: Any) -> Counts:
        """Return the tokens of each row."""
        return measure_lists(batch, "input_ids")

    def count_targets(self, batch: Any) -> Counts:
        """Return one for each row."""
        return np.ones(batch.num_rows, np.int32)

    def read_row(self, batch: Any, place: int) -> LabelledRow:
        """Read a row; its arrays have the shape `[length]`, `type_ids` may be empty."""
        return LabelledRow(
            read_list(batch, "input_ids", place).to_numpy(),
            read_list(batch, "type_ids", place).to_numpy(),
            tuple(read_list(batch, "labels", place).to_pylist()),
        )


LABELLED_LAYOUT = LabelledLayout()


class LabelledTextReader:
    """Reads the rows of one source as tokens with labels.

    A row longer than `max_length` is truncated if `truncates`, the longer of two texts first.
    """

    def __init__(
        self,
        source: RowSource,
        columns: Mapping[str, str],
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        *,
        truncates: bool,
    ) -> None:
        self._source = source
        self._mapped = columns
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._truncates = truncates
        self._columns: Columns | None = None

    @property
    def format(self) -> str | None:
        """The columns of the rows; None before the first record."""
        return None if self._columns is None else self._columns.describe()

    def parse(self, line: int, record: Any, number: int) -> LabelledText:
        """Parse one record; raises `RowFault`, and `DataError` if the first row lacks a column."""
        if self._columns is None:
            try:
                self._columns = choose_columns(record, self._mapped)
            except DataError as exc:
                raise DataError(f"{self._source.name}: {exc}") from exc
        if not isinstance(record, Mapping):
            raise RowFault("expected an object, found {}", show_value(record))
        texts = tuple(get_text(record, name) for name in self._columns.texts)
        check_size("it has", sum(len(text.encode()) for text in texts), MAX_TEXT_BYTES)
        labels = get_labels(record, self._columns.label)
        used = {*self._columns.texts, self._columns.label}
        ignored = tuple(sorted(str(key) for key in record if key not in used))
        return LabelledText(line, number, texts, labels, ignored)

    def encode(
        self, batches: Iterable[Sequence[LabelledText]]
    ) -> Iterator[tuple[LabelledText, LabelledSample | RowFault]]:
        """Tokenise rows with the special tokens that the model expects around its texts."""
        for rows in batches:
            for row, ids, types in zip(rows, *self._tokenize(rows, 0), strict=True):
                num_cut = max(0, len(ids) - self._max_length)
                if num_cut and self._truncates:
                    ((ids,), (types,)) = self._tokenize([row], self._max_length)
                else:
                    num_cut = 0
                yield (
                    row,
                    LabelledSample(
                        row.line,
                        row.number,
                        np.array(ids, np.int32),
                        np.array(types, np.uint8),
                        row.labels,
                        num_cut,
                    ),
                )

    def _tokenize(
        self, rows: Sequence[LabelledText], max_length: int
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the token ids and type ids of rows, truncated unless `max_length` is 0."""
        has_types = "token_type_ids" in self._tokenizer.model_input_names
        with translate_faults():
            encoded = self._tokenizer(
                [row.texts[0] for row in rows],
                [row.texts[1] for row in rows] if len(rows[0].texts) > 1 else None,
                truncation="longest_first" if max_length else False,
                max_length=max_length or None,
                return_attention_mask=False,
                return_token_type_ids=has_types,
            )
        return encoded["input_ids"], encoded.get("token_type_ids") or [[] for _ in rows]

    def describe(self) -> dict[str, Any]:
        """Return nothing more: the format names the columns."""
        return {}

    def close(self) -> None:
        """Free nothing: the tokenizer belongs to the caller."""
