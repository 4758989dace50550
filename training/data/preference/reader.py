"""The reader of preference rows: pairs of answers, or single answers with verdicts for KTO."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from training.data.faults import DataError, RowFault
from training.data.preference.formats import (
    PreferenceParser,
    PreferenceRow,
    choose_parser,
)
from training.data.preference.pair_layout import PairSample
from training.data.readers import RowSource
from training.data.text.encoding import TokenSample
from training.data.text.formats import Row
from training.data.text.reader import TextReader
from training.spec import TrainingSpec

_MAX_WAITING = 10_000  # answers in memory, until one to another prompt is read

Encoded = tuple[PreferenceRow, PairSample | RowFault]


class PreferenceReader:
    """Reads the rows of one source as pairs of token sequences.

    `is_unpaired`: each answer becomes a row of its own, with the answer of the last row before it
    that has another prompt as its mismatched answer; the first rows have that of the first later
    one, and without `needs_mismatch` their own. Then also rows with single answers are read.
    """

    def __init__(
        self,
        source: RowSource,
        spec: TrainingSpec,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: tuple[int, ...],
        max_length: int,
        *,
        is_unpaired: bool,
        needs_mismatch: bool,
    ) -> None:
        self._source = source
        self._max_length = max_length
        self._needs_mismatch = needs_mismatch
        self._columns = spec.columns
        self._is_unpaired = is_unpaired
        self._texts = TextReader(source, spec, tokenizer, None, end_ids)
        self._parser: PreferenceParser | None = None

    @property
    def format(self) -> str | None:
        """The format of the rows; None before the first record."""
        return None if self._parser is None else self._parser.format

    def parse(self, line: int, record: Any, number: int) -> PreferenceRow:
        """Parse one record, the row with this number.

        Raises `RowFault`, and `DataError` if the first row has no known format.
        """
        if self._parser is None:
            try:
                self._parser = choose_parser(
                    record, self._columns, allows_unpaired=self._is_unpaired
                )
            except DataError as exc:
                raise DataError(f"{self._source.name}: {exc}") from exc
        return self._parser.parse(line, record, number)

    def encode(self, batches: Iterable[Sequence[PreferenceRow]]) -> Iterator[Encoded]:
        """Tokenise rows; raises `DataError` if the chat template exceeds its limits.

        For unpaired rows it is also raised if all of them have the same prompt.
        """
        encoded = self._encode_answers(batches)
        if self._is_unpaired:
            if not self._needs_mismatch:
                return _repeat(encoded)
            return _mismatch(encoded, self._source.name, self._max_length)
        return _pair(encoded)

    def describe(self) -> dict[str, Any]:
        """Return whether the model has a token at which it stops generating."""
        return self._texts.describe()

    def close(self) -> None:
        """Stop the process that renders chat templates."""
        self._texts.close()

    def _encode_answers(
        self, batches: Iterable[Sequence[PreferenceRow]]
    ) -> Iterator[tuple[PreferenceRow, list[TokenSample] | RowFault]]:
        """Yield each row with its answers as tokens, each after its prompt."""
        pending: deque[PreferenceRow] = deque()

        def list_chats() -> Iterator[list[Row]]:
            for batch in batches:
                pending.extend(batch)
                yield [answer.row for row in batch for answer in row.answers]

        answers: list[TokenSample | RowFault] = []
        for _, group in groupby(self._texts.encode(list_chats()), lambda found: id(found[0])):
            samples = [sample for _, sample in group]
            answers.append(samples[0] if len(samples) == 1 else _refuse_parts(len(samples)))
            if len(answers) < len(pending[0].answers):
                continue
            fault = next((one for one in answers if isinstance(one, RowFault)), None)
            good = [one for one in answers if isinstance(one, TokenSample)]
            yield pending.popleft(), fault or good
            answers = []


def _refuse_parts(num_samples: int) -> RowFault:
    return RowFault(
        "the chat template renders an answer of several messages as {} separate prompts: expected "
        "an answer of one message",
        num_samples,
    )


def _pair(
    rows: Iterable[tuple[PreferenceRow, list[TokenSample] | RowFault]],
) -> Iterator[Encoded]:
    for row, answers in rows:
        if isinstance(answers, RowFault):
            yield row, answers
        elif np.array_equal(answers[0].input_ids, answers[1].input_ids):
            yield row, RowFault("both answers have the same tokens, expected different answers")
        else:
            yield row, PairSample(answers[0], answers[1])


def _repeat(
    rows: Iterable[tuple[PreferenceRow, list[TokenSample] | RowFault]],
) -> Iterator[Encoded]:
    """Make each answer a row, with itself as its second side."""
    for row, answers in rows:
        if isinstance(answers, RowFault):
            yield row, answers
            continue
        for answer, parsed in zip(answers, row.answers, strict=True):
            yield row, PairSample(answer, answer, parsed.is_desirable)


def _mismatch(
    rows: Iterable[tuple[PreferenceRow, list[TokenSample] | RowFault]], name: str, max_length: int
) -> Iterator[Encoded]:
    """Make each answer a row, with an answer to another prompt as its second side.

    If only the second side is longer than `max_length`, it is truncated.
    """
    waiting: list[tuple[PreferenceRow, TokenSample, bool]] = []
    recent: list[TokenSample] = []  # the last answer, and the last one to another prompt
    for row, answers in rows:
        if isinstance(answers, RowFault):
            yield row, answers
            continue
        for answer, parsed in zip(answers, row.answers, strict=True):
            if recent and not _has_prompt_of(recent[0], answer):
                recent = [answer, recent[0]]
            else:
                recent = [answer, *recent[1:]]
            waiting.append((row, answer, parsed.is_desirable))
            if len(recent) == 1:
                if len(waiting) > _MAX_WAITING:
                    raise _refuse_prompt(name, f"the first {_MAX_WAITING:,}")
                continue
            for earlier, own, is_desirable in waiting:
                other = recent[1] if _has_prompt_of(own, answer) else answer
                yield (
                    earlier,
                    PairSample(own, _join_mismatched(own, other, max_length), is_desirable),
                )
            waiting = []
    if waiting:
        raise _refuse_prompt(name, "all")


def _refuse_prompt(name: str, which: str) -> DataError:
    return DataError(
        f"{name}: {which} rows have the same prompt, and the loss 'kto' estimates its baseline "
        "from prompts with the answers to other prompts: expected at least two prompts"
    )


def _find_answer(sample: TokenSample) -> int:
    return int(np.argmax(sample.learned))


def _has_prompt_of(one: TokenSample, other: TokenSample) -> bool:
    prompt = one.input_ids[: _find_answer(one)]
    return np.array_equal(prompt, other.input_ids[: _find_answer(other)])


def _join_mismatched(own: TokenSample, other: TokenSample, max_length: int) -> TokenSample:
    """Join the prompt of one row with the answer of another.

    The result has at most `max_length` tokens if the first row has, and some of the answer.
    """
    prompt, answer = slice(0, _find_answer(own)), slice(_find_answer(other), None)
    ids = np.concatenate([own.input_ids[prompt], other.input_ids[answer]])
    learned = np.concatenate([own.learned[prompt], other.learned[answer]])
    end = max_length if own.length <= max_length else None
    return replace(own, input_ids=ids[:end], learned=learned[:end])
