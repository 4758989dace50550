"""A preview of the first rows of a data set as tokens, before anything starts."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from training.data.preference.pair_layout import PairSample
from training.data.readers import KnownFile
from training.data.row_stream import RowStream
from training.data.sources import open_train_sources
from training.data.text.encoding import TokenSample
from training.settings.task_settings import PREFERENCE_TASK
from training.spec import TrainingSpec
from training.tasks.causal_lm import TextData
from training.tasks.preference import PreferenceData

_MAX_PARTS = 4  # bytes of a character in UTF-8
_ENOUGH_TOKENS = 100_000  # each is shown with its text


@dataclass(frozen=True)
class Preview:
    """The first rows as tokens, their format and length limit, and the tokenizer.

    Each answer of a preference row is a row; `preferred` says of each whether it is the better or a
    good one, and is empty for other rows. `ignored_keys` counts the rows read that have each
    ignored key.
    """

    format: str
    max_length: int
    rows: list[TokenSample]
    preferred: list[bool]
    tokenizer: PreTrainedTokenizerBase
    ignored_keys: Mapping[str, int]


def preview_rows(
    spec: TrainingSpec, num_rows: int, known: Mapping[str, KnownFile] | None = None
) -> Preview:
    """Encode the first `num_rows` rows and read no further; fewer if they have many tokens.

    If a spec has several sources, the rows are those of the first source.

    Rows that a fine-tune would drop are missing. `known` and the exceptions are those of
    `prepare_data`.
    """
    data = PreferenceData(spec, is_preview=True) if spec.task == PREFERENCE_TASK else TextData(spec)
    source = open_train_sources(spec, known)[0].source
    reader: Any = data.open_reader(source, None)
    stream = RowStream(source, reader, data.max_length, spec.overlong)
    rows: list[TokenSample] = []
    preferred: list[bool] = []
    num_tokens = 0
    with closing(stream.encode(min(num_rows, spec.max_rows or num_rows))) as encoded:
        for row in encoded:
            for sample, is_preferred in _list_answers(row):
                rows.append(sample.renumber(row.number))
                num_tokens += sample.length
                if is_preferred is not None:
                    preferred.append(is_preferred)
            if num_tokens >= _ENOUGH_TOKENS:
                break
    counts = stream.counts.ignored_keys.counts
    return Preview(stream.format, data.max_length, rows, preferred, data.tokenizer, counts)


def _list_answers(row: TokenSample | PairSample) -> list[tuple[TokenSample, bool | None]]:
    if isinstance(row, TokenSample):
        return [(row, None)]
    if row.verdict is not None:  # its other side is only for the baseline of KTO
        return [(row.first, row.verdict)]
    return [(row.first, True), (row.second, False)]


def split_tokens(row: TokenSample, tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, bool]]:
    """Split an encoded row into pieces: the text of each token, and whether it is learned.

    Tokens with parts of a character are joined until the character is complete. If it is incomplete
    after as many tokens as a character can have bytes, the row itself has replacement characters.
    """
    pieces: list[tuple[str, bool]] = []
    learned = row.learned.tolist()
    pending: list[int] = []
    for place, token in enumerate(row.input_ids.tolist()):
        pending.append(token)
        text = str(tokenizer.decode(pending))
        num_kept = 0
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            if len(pending) < _MAX_PARTS:
                continue
            num_kept = _count_tail(pending, text, tokenizer)
        whole, pending = pending[: len(pending) - num_kept], pending[len(pending) - num_kept :]
        pieces.append((str(tokenizer.decode(whole)), learned[place - num_kept]))
    if pending:
        pieces.append((str(tokenizer.decode(pending)), learned[-1]))
    return pieces


def _count_tail(tokens: list[int], text: str, tokenizer: PreTrainedTokenizerBase) -> int:
    """Count the last tokens that may begin a character, so that the tokens before are complete."""
    for num_tail in range(1, len(tokens)):
        parts = tokens[:-num_tail], tokens[-num_tail:]
        if "".join(str(tokenizer.decode(part)) for part in parts) == text:
            return num_tail
    return 0
