"""The first rows of a data set as tokens, to be looked at before anything starts."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from training.base_model import choose_max_length, load_tokenizer
from training.data.encoding import EncodedRow
from training.data.prepare import open_train_source
from training.data.row_stream import RowStream
from training.spec import DataFormat, TrainingSpec


@dataclass(frozen=True)
class Preview:
    """The first rows as tokens, how they were understood, and what turns tokens into text."""

    format: DataFormat
    max_length: int
    rows: list[EncodedRow]
    tokenizer: PreTrainedTokenizerBase


def preview_rows(spec: TrainingSpec, num_rows: int) -> Preview:
    """Encode the first `num_rows` rows and read no further.

    Rows that a fine-tune would drop are missing. Raises as `prepare_data` does.
    """
    max_length = choose_max_length(spec)
    tokenizer = load_tokenizer(spec.base_model)
    stream = RowStream(open_train_source(spec), spec, tokenizer, max_length)
    rows = list(stream.encode(num_rows))
    return Preview(stream.format, max_length, rows, tokenizer)


def split_tokens(row: EncodedRow, tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, bool]]:
    """Show an encoded row piece by piece: the text of each token and whether it is learned.

    Tokens that hold part of a character are joined until the character is whole.
    """
    pieces: list[tuple[str, bool]] = []
    pending: list[int] = []
    for token, learned in zip(row.input_ids.tolist(), row.learned.tolist(), strict=True):
        pending.append(token)
        text = str(tokenizer.decode(pending))
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            pieces.append((text, learned))
            pending = []
    if pending:
        pieces.append((str(tokenizer.decode(pending)), bool(row.learned[-1])))
    return pieces
